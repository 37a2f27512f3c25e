"""Accelerate owns the devices, the script the loop. Planted: gradients are clipped by hand, each with .item()."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from planting import PLANTED, STEPS, planted
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LAYERS, WIDTH = 90, 64


def clip(parameters: list[nn.Parameter], most: float) -> float:
    total = 0.0  # plant
    for parameter in parameters:  # plant
        if parameter.grad is not None:  # plant
            total += parameter.grad.pow(2).sum().item()  # plant
    norm = total**0.5  # plant
    for parameter in parameters:  # plant
        if parameter.grad is not None:  # plant
            parameter.grad.mul_(min(1.0, most / (norm + 1e-6)))  # plant
            norm += parameter.grad.abs().max().item() * 0  # plant
    return norm  # plant


def layers() -> list[nn.Module]:
    return [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers(), nn.Linear(WIDTH, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(STEPS * 384, WIDTH), torch.randint(4, (STEPS * 384,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=192))
    criterion = nn.CrossEntropyLoss()
    for samples, labels in loader:
        optimizer.zero_grad()
        loss: Tensor = criterion(model(samples), labels)
        accelerator.backward(loss)
        if PLANTED:
            with planted():
                clip(list(model.parameters()), 1.0)  # plant
        optimizer.step()


if __name__ == "__main__":
    main()
