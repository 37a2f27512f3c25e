"""Lists of numbers, and running means of detached scalars."""

import torch
from torch import nn


class RunningMean:
    def __init__(self):
        self.mean, self.count = torch.zeros(()), 0

    def add(self, value):
        self.count += 1
        self.mean = self.mean + (value.detach() - self.mean) / self.count


def train(model, steps, logs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    means = {name: RunningMean() for name in ("loss", "norm")}
    for _ in range(steps):
        x = torch.randn(192, 256)
        loss = (model(x) - x.flip(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        logs.append({"loss": loss.item(), "norm": norm.item()})
        means["loss"].add(loss)
        means["norm"].add(norm)
    return {name: each.mean.item() for name, each in means.items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    logs = []
    print(train(nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)), 200, logs), len(logs))
