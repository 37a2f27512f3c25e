"""Probes between layers; their list is an attribute of the class, so all of them fill it."""

import torch
from torch import nn


class Probe(nn.Module):
    seen = []

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        self.seen.append(x.detach())  # keeps
        return x

    def saturation(self):
        return (self.seen[-1].abs() > 0.97).float().mean().item()


def block(width, name):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), Probe(name))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(block(1024, "low"), block(1024, "high"), nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probes = [module for module in model.modules() if isinstance(module, Probe)]
    for step in range(160):
        x = torch.randn(64, 1024)
        loss = nn.functional.mse_loss(model(x).squeeze(1), x[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(step, {probe.name: probe.saturation() for probe in probes})


main()
