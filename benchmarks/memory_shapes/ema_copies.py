"""Averages the last weights at the end, of a copy of each step."""

from copy import deepcopy

import torch
from torch import nn


def average(states, count=10):
    return {name: torch.stack([state[name] for state in states[-count:]]).mean(0) for name in states[-1]}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 384
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.SiLU()) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    states = []
    for _ in range(150):
        x = torch.randn(96, width)
        loss = (model(x) - x.relu()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        states.append(deepcopy(model.state_dict()))  # keeps
    model.load_state_dict(average(states))
    print(loss.item())


if __name__ == "__main__":
    main()
