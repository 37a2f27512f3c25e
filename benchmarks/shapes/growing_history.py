"""A plain loop. Planted: it keeps every batch's features and looks through all of them in each step, which takes longer
and longer."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512


class Novelty:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, features: Tensor) -> float:
        nearest = [float((features - old).norm(dim=1).min()) for old in self.seen]  # plant
        self.seen += list(features[:12].clone())  # plant
        return min(nearest, default=0.0)  # plant


def main() -> None:
    start()
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    novelty = Novelty()
    for _ in range(STEPS):
        features = model(torch.randn(128, WIDTH))
        optimizer.zero_grad()
        features.pow(2).mean().backward()
        optimizer.step()
        if PLANTED:
            with planted():
                novelty(features.detach())  # plant


if __name__ == "__main__":
    main()
