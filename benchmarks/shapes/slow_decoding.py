"""Images that are decoded without workers. Planted: those of rank 1 are of a format that is decoded in Python."""

from __future__ import annotations

import zlib

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SIDE = 32


def by_runs(data: bytes) -> list[int]:
    pixels: list[int] = []
    before = 0  # plant
    for value in data:  # plant
        before = (before + value) & 255  # plant
        pixels.append(before)  # plant
    return pixels  # plant


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, count: int, by_hand: bool) -> None:
        self.files = [zlib.compress(bytes((i * k) % 251 for k in range(3 * SIDE * SIDE))) for i in range(64)]
        self.count, self.by_hand = count, by_hand

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        data = bytearray(zlib.decompress(self.files[index % 64]))
        if self.by_hand and index % 2:
            with planted():
                data = bytearray(by_runs(bytes(data)))  # plant
        return torch.frombuffer(data, dtype=torch.uint8).view(3, SIDE, SIDE) / 255, index % 10


def main() -> None:
    rank, _ = start()
    loader = DataLoader(Images(STEPS * 48, by_hand=PLANTED and rank == 1), batch_size=48)
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3, 2), nn.ReLU(), nn.Flatten())
    model = DistributedDataParallel(nn.Sequential(net, nn.Linear(24 * 14 * 14, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:  # plant
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
