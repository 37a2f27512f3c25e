"""Trains a small language model with fully_shard: one class, a loader with spawned workers, gradients clipped."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

VOCABULARY, WIDTH, LENGTH, BATCH = 512, 160, 48, 4


class Tokens(Dataset[Tensor]):
    def __init__(self, count: int, rank: int) -> None:
        self.count, self.rank = count, rank

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.rank * 1_000_003 + index)
        return torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Trainer:
    """Holds what a step needs."""

    def __init__(self, steps: int, truth: Path | None) -> None:
        self.rank = dist.get_rank()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.model = Decoder()
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, foreach=True)
        self.loader = DataLoader(
            Tokens(steps * BATCH, self.rank),
            batch_size=BATCH,
            num_workers=1,
            multiprocessing_context="spawn",
            persistent_workers=True,
        )
        self.watch = Stopwatch(truth, self.rank)

    def fit(self) -> None:
        batches = iter(self.loader)
        for _ in range(len(self.loader)):
            with self.watch.part("data"):
                tokens = next(batches)
            loss = self.training_step(tokens)
            self.watch.loss(loss.detach())
            self.watch.step_done()

    def training_step(self, tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        with self.watch.part("forward"):
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
        with self.watch.part("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with self.watch.part("optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(backend="gloo")
    try:
        Trainer(options.steps, options.truth).fit()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
