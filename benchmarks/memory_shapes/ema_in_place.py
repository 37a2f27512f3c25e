"""An average of the weights that is changed in place."""

from copy import deepcopy

import torch
from torch import nn


class Ema:
    def __init__(self, model, decay=0.99):
        self.model = deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.decay)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(384, 384), nn.SiLU()) for _ in range(4)))
    ema = Ema(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(160):
        x = torch.randn(160, 384)
        loss = (model(x) - x.relu()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
    print(loss.item(), (ema.model(x) - x.relu()).pow(2).mean().item())


if __name__ == "__main__":
    main()
