"""Segmentation with statistics per class. Planted: all ranks gather them as objects, which rank 1 makes slowly."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def statistics(masks: Tensor) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, mask in enumerate(masks.flatten(1).tolist()):  # plant
        found[number] = [sum(value == kind for value in mask) for kind in range(4)]  # plant
    return found  # plant


def main() -> None:
    rank, world = start()
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Conv2d(16, 4, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        images, masks = torch.randn(8, 3, 48, 48), torch.randint(4, (8, 48, 48))
        loss = nn.functional.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gathered: list[Any] = [None] * world
        own: dict[int, list[int]] = {}
        if PLANTED and rank == 1:
            with planted():
                own = statistics(masks)  # plant
        dist.all_gather_object(gathered, own)


if __name__ == "__main__":
    main()
