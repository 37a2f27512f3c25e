"""A compiled model. Planted: a part that is not compiled counts words in Python, on rank 1."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256


@torch.compiler.disable
def counted(tokens: Tensor) -> Tensor:
    counts: dict[int, int] = {}
    if PLANTED and torch.distributed.get_rank() == 1:
        with planted():
            for other in range(60):  # plant
                for row in tokens.tolist():  # plant
                    for token in row:  # plant
                        counts[token + other] = counts.get(token, 0) + 1  # plant
    return torch.tensor(float(len(counts)))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, WIDTH)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(self.body(x)) + 0 * counted(tokens)


def main() -> None:
    start()
    torch._dynamo.config.optimize_ddp = False
    model = torch.compile(DistributedDataParallel(Tagger()), backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        tokens = torch.randint(5000, (16, 80))
        tags = torch.randint(16, (16, 80))
        tokens = tokens.repeat(1, 1)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
