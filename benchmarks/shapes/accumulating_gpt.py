"""A small GPT that accumulates gradients over micro-batches. Planted: rank 1 encodes its text in Python."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES, VOCABULARY, LENGTH, WIDTH = 4, 256, 64, 64
TEXT = "To be, or not to be, that is the question: " * 150


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(2)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(tokens)))


def encode(text: str) -> list[int]:
    codes: list[int] = []
    for i, letter in enumerate(text):  # plant
        codes.append((ord(letter) * 31 + i * i + sum(codes[-2:])) % VOCABULARY)  # plant
    return codes  # plant


def main() -> None:
    rank, _ = start()
    model = DistributedDataParallel(Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            tokens = torch.randint(VOCABULARY, (6, LENGTH + 1))
            if PLANTED and rank == 1:
                with planted():
                    codes = encode(TEXT)  # plant
                tokens[0] = torch.tensor(codes[: LENGTH + 1])
            with nullcontext() if micro == MICRO_BATCHES - 1 else model.no_sync():
                logits = model(tokens[:, :-1])
                loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / MICRO_BATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
