"""A classifier with a loader. Planted: rank 0 fills a confusion matrix in Python, from tensors, in each step."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH, CLASSES, BATCH = 384, 20, 320


class Confusion:
    def __init__(self) -> None:
        self.matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        for guess, label in zip(predicted, labels, strict=True):  # plant
            self.matrix[label.item(), guess.item()] += 1  # plant


def main() -> None:
    rank, _ = start()
    data = TensorDataset(torch.randn(STEPS * BATCH, WIDTH), torch.randint(CLASSES, (STEPS * BATCH,)))
    body = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6))
    model = DistributedDataParallel(nn.Sequential(*body, nn.Linear(WIDTH, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    confusion = Confusion()
    for samples, labels in DataLoader(data, batch_size=BATCH, num_workers=1):
        output = model(samples)
        loss = nn.functional.cross_entropy(output, labels)
        if PLANTED and rank == 0:
            with planted():
                confusion.update(output.argmax(1), labels)  # plant
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
