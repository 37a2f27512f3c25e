"""Sine positions by functools.lru_cache with a bound that is soon reached."""

import random
from functools import lru_cache

import torch
from torch import nn


@lru_cache(maxsize=64)
def positions(length, width, offset):
    place = torch.arange(length)[:, None] + offset
    rate = torch.exp(torch.arange(0, width, 2) * (-9.2 / width))
    return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], dim=1)


def main(steps=240, length=512, width=128):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dice = random.Random(0)
    model = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(2, length, width) + positions(length, width, dice.random())
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), positions.cache_info())


if __name__ == "__main__":
    main()
