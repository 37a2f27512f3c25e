"""Distillation: a teacher without gradients in each step. Planted: rank 1 runs the teacher three times more."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, softmax
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512


def network(depth: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(depth)))


class Distiller:
    def __init__(self, times: int) -> None:
        self.teacher, self.times = network(4).eval(), times

    @torch.no_grad()
    def targets(self, samples: Tensor) -> Tensor:
        found = self.teacher(samples)
        if self.times > 1:
            with planted():
                for _ in range(self.times - 1):
                    found = found + self.teacher(samples + 0.01 * torch.randn_like(samples))  # plant
        return softmax(found / self.times, 1)


def main() -> None:
    rank, _ = start()
    student = DistributedDataParallel(network(3))
    distiller = Distiller(4 if PLANTED and rank == 1 else 1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    for _ in range(STEPS):
        samples = torch.randn(160, WIDTH)
        targets = distiller.targets(samples)
        loss = kl_div(log_softmax(student(samples), 1), targets, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
