"""Two stages of a pipeline by hand, four micro-batches. Planted: the second one normalises its input in pieces."""

from __future__ import annotations

import torch
import torch.distributed as dist
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn

WIDTH, SAMPLES, MICRO_BATCHES = 384, 64, 4


def normalised(x: Tensor) -> Tensor:
    rows = []  # plant
    for row in x:  # plant
        rows.append((row - row.mean()) / (row.std() + 1e-5))  # plant
    return torch.stack(rows)  # plant


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)))


def first(stage: nn.Module) -> None:
    outputs, sending = [], []
    for _ in range(MICRO_BATCHES):
        outputs.append(stage(torch.randn(SAMPLES, WIDTH)))
        sending.append(dist.isend(outputs[-1].detach(), 1))
    for sent, output in zip(sending, outputs, strict=True):
        gradient = torch.empty_like(output)
        dist.recv(gradient, 1)
        output.backward(gradient)
        assert sent is not None
        sent.wait()


def second(stage: nn.Module) -> None:
    for _ in range(MICRO_BATCHES):
        received = torch.empty(SAMPLES, WIDTH)
        dist.recv(received, 0)
        if PLANTED:
            with planted():
                received = normalised(received)  # plant
        received.requires_grad_()
        stage(received).pow(2).mean().backward()
        assert received.grad is not None
        dist.send(received.grad, 0)


def main() -> None:
    rank, _ = start()
    stage = layers()
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (first, second)[rank](stage)
        optimizer.step()


if __name__ == "__main__":
    main()
