"""Fits a network with LBFGS, whose step calls a closure several times; the ranks average their gradients themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch import Tensor, nn


class Surface(nn.Module):
    """A function of the plane."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points)  # type: ignore[no-any-return]


class Fit:
    """Points of one rank, and the optimizer's closure over them."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self.model = Surface()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=2, history_size=4)
        self.points, self.values = self.sample()

    def sample(self) -> tuple[Tensor, Tensor]:
        points = torch.rand(1024, 2)
        return points, torch.sin(6 * points[:, :1]) * points[:, 1:]

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        with self.watch.part("forward"):
            loss = nn.functional.mse_loss(self.model(self.points), self.values)
        with self.watch.part("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.watch.loss(loss.detach())
        return loss

    def step(self) -> None:
        with self.watch.part("optimizer"):
            self.optimizer.step(self.closure)  # type: ignore[no-untyped-call]
        self.watch.step_done()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(31)
    fit = Fit(Stopwatch(args.truth, dist.get_rank(), unknown=("data",)))
    for _ in range(args.steps):
        fit.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
