"""Layers are unfrozen one after another: their momentum and their buffers are made in the first thirty steps."""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.statistics = None

    def forward(self, x):
        if self.linear.weight.requires_grad:
            if self.statistics is None:
                self.statistics = torch.ones(256, x.shape[1])
            self.statistics.lerp_(x.detach().abs(), 0.1)
        return torch.relu(self.linear(x)) + x


def unfreeze(layers, step):
    if step % 3 == 0 and step < 30:
        layers[-1 - step // 3].requires_grad_(True)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = nn.Sequential(*(Scaled(256).requires_grad_(False) for _ in range(10)))
    head = nn.Linear(256, 1)
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-4)
    for step in range(180):
        unfreeze(layers, step)
        x = torch.randn(256, 256)
        loss = (head(layers(x)).squeeze(1) - x[:, 0]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
