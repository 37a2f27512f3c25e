"""The learning rate is changed by a new Adam in each step; the old ones stay in a list."""

import math

import torch
from torch import nn


class Schedule:
    def __init__(self, model, base):
        self.model, self.base = model, base
        self.optimizers = []

    def optimizer(self, step):
        lr = self.base * 0.5 * (1 + math.cos(math.pi * step / 150))
        self.optimizers.append(torch.optim.Adam(self.model.parameters(), lr=lr))  # keeps
        return self.optimizers[-1]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    schedule = Schedule(model, 1e-3)
    losses = []
    for step in range(150):
        optimizer = schedule.optimizer(step)
        x = torch.randn(256, 256)
        loss = nn.functional.smooth_l1_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
