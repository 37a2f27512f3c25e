"""A monitor that joins each step's features to those that it has."""

import torch
from torch import nn


class Monitor:
    def __init__(self, width):
        self.history = torch.empty(0, width)

    def add(self, x):
        x = x.detach()
        self.history = torch.cat([self.history, x])  # keeps

    def spread(self):
        return self.history[-1000:].std().item()


def batches(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(128, 256, generator=generator)


torch.set_num_threads(1)
torch.manual_seed(0)
monitor = Monitor(1024)
body, head = nn.Linear(256, 1024), nn.Linear(1024, 256)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
for number, x in enumerate(batches(140)):
    features = body(x).relu()
    loss = nn.functional.l1_loss(head(features), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    monitor.add(features)
    if number % 40 == 0:
        print(number, loss.item(), monitor.spread())
