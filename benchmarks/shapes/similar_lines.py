"""A loop that augments its samples. Planted: rank 1 does so in Python, in a function whose lines are all alike."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512


def augmented(values: list[float]) -> list[float]:
    a = [value * 0.5 + 0.1 for value in values]  # plant
    b = [value * value - 0.2 for value in a]  # plant
    c = [value * 0.7 + 0.3 for value in b]  # plant
    d = [value * value - 0.4 for value in c]  # plant
    e = [value * 0.9 + 0.5 for value in d]  # plant
    f = [value * value - 0.6 for value in e]  # plant
    g = [value * 1.1 + 0.7 for value in f]  # plant
    return [value * value - 0.8 for value in g]  # plant


def main() -> None:
    rank, _ = start()
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        samples = torch.randn(128, WIDTH)
        if PLANTED and rank == 1:
            with planted():
                values = augmented(samples[:60].flatten().tolist())  # plant
            samples[:60] = torch.tensor(values).view(60, WIDTH)
        loss = model(samples).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
