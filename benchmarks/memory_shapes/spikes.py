"""A new optimizer in each epoch, the old one dropped; now and then a step needs much more memory for a moment."""

import random

import torch
from torch import nn


def penalty(model):
    """The Gram matrix of many random inputs; freed at once."""
    codes = model[0](torch.randn(3000, 128)).detach()
    return (codes @ codes.T).diagonal().mean().item()


def epoch(model, optimizer, dice, steps):
    for _ in range(steps):
        x = torch.randn(128, 128)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dice.random() < 0.05:
            penalty(model)
    return loss.item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dice = random.Random(3)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    for number in range(8):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 / (1 + number))
        print(number, epoch(model, optimizer, dice, steps=30))


if __name__ == "__main__":
    main()
