"""The network, and its validation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32 * 8 * 8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.first(images)), 2)
        x = torch.max_pool2d(torch.relu(self.second(x)), 2)
        return self.head(x.flatten(1))


@torch.no_grad()
def validate(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    network.eval()  # plant
    right = 0  # plant
    for images, labels in batches:  # plant
        right += int((network(images).argmax(1) == labels).sum())  # plant
    network.train()  # plant
    return right / max(sum(len(labels) for _, labels in batches), 1)
