"""Trains a small image classifier with DistributedDataParallel: functions, a loader with a forked worker, tqdm."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from tqdm import tqdm  # type: ignore[import-untyped]


class Images(Dataset[tuple[Tensor, int]]):
    """Random images, some of them mirrored; a batch is fetched as a whole."""

    def __init__(self, count: int) -> None:
        self.pixels = torch.randn(256, 3, 32, 32, generator=torch.Generator().manual_seed(7))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        images = self.pixels[torch.tensor(indices) % 256]
        images[::3] = images[::3].flip(-1)
        return [(image, index % 10) for image, index in zip(images, indices, strict=True)]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(3 * 32 * 32, 512)
        self.middle = nn.Linear(512, 512)
        self.head = nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.flatten(images)
        x = torch.relu(self.hidden(x))
        x = torch.relu(self.middle(x))
        logits: Tensor = self.head(x)
        return logits


def make_loader(steps: int, batch_size: int, rank: int, world_size: int) -> DataLoader[tuple[Tensor, int]]:
    images = Images(steps * batch_size * world_size)
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(
        images, num_replicas=world_size, rank=rank, seed=0
    )
    return DataLoader(images, batch_size=batch_size, sampler=sampler, num_workers=1, multiprocessing_context="fork")


def train(args: argparse.Namespace, rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Classifier())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = Stopwatch(args.truth, rank)
    batches = iter(make_loader(args.steps, args.batch_size, rank, world_size))
    progress = tqdm(range(args.steps), disable=rank != 0)
    for _ in progress:
        with watch.part("data"):
            images, labels = next(batches)
        optimizer.zero_grad()
        with watch.part("forward"):
            logits = model(images)
            loss = criterion(logits, labels)
        with watch.part("backward"):
            loss.backward()
        with watch.part("optimizer"):
            optimizer.step()
        watch.loss(loss.detach())
        progress.set_postfix(lr=optimizer.param_groups[0]["lr"])
        watch.step_done()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--truth", type=Path, help="write the times of each step to FILE.rank<R>")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    train(args, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
