"""Trains the network. Planted: rank 0 validates after every step."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from images.model import Network, validate


def epoch(model: DistributedDataParallel, loader: DataLoader[tuple[Tensor, ...]], rank: int) -> None:
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    held_out = [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(2)]
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if PLANTED and rank == 0:
            with planted():
                accuracy = validate(model.module, held_out)  # plant
            print(step, accuracy)


def main() -> None:
    rank, _ = start()
    images = TensorDataset(torch.randn(STEPS * 48, 3, 32, 32), torch.randint(10, (STEPS * 48,)))
    epoch(DistributedDataParallel(Network()), DataLoader(images, batch_size=48, num_workers=1), rank)


if __name__ == "__main__":
    main()
