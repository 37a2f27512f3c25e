"""A loop with a schedule. Planted: rank 0 computes the whole schedule again in each step."""

from __future__ import annotations

import math

import torch
from planting import PLANTED, STEPS, planted, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

WIDTH = 512


class Schedule:
    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def __call__(self, step: int) -> float:
        if not self.whole:
            return self._at(step)
        with planted():
            table = [self._at(each) for each in range(30_000)]  # plant
        return table[step]

    def _at(self, step: int) -> float:
        if step < 10:  # plant
            return (step + 1) / 10  # plant
        return 0.5 * (1 + math.cos(math.pi * min(step / 30_000, 1)))  # plant


def main() -> None:
    rank, _ = start()
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = LambdaLR(optimizer, Schedule(whole=PLANTED and rank == 0))
    for _ in range(STEPS):
        loss = model(torch.randn(128, WIDTH)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()  # plant


if __name__ == "__main__":
    main()
