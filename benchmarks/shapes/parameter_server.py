"""Rank 0 also keeps the weights and sends them to rank 1. Planted: it looks at each weight in Python first."""

from __future__ import annotations

import torch
import torch.distributed as dist
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn

WIDTH = 384


def checked(weights: Tensor) -> int:
    bad = 0  # plant
    for value in weights.tolist():  # plant
        bad += not -1e4 < value < 1e4  # plant
    return bad  # plant


def main() -> None:
    rank, _ = start()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(5)), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        samples = torch.randn(192, WIDTH)
        loss = (model(samples).squeeze(1) - samples.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        gradient = nn.utils.parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])
        if rank == 1:
            dist.send(gradient, 0)
            weights = torch.empty_like(gradient)
            dist.recv(weights, 0)
            nn.utils.vector_to_parameters(weights, model.parameters())
        else:
            others = torch.empty_like(gradient)
            dist.recv(others, 1)
            nn.utils.vector_to_parameters((gradient + others) / 2, [p.grad for p in model.parameters()])
        optimizer.step()
        if rank == 0:
            weights = nn.utils.parameters_to_vector(model.parameters()).detach()
            if PLANTED:
                with planted():
                    checked(weights[:200_000])  # plant
            dist.send(weights, 1)


if __name__ == "__main__":
    main()
