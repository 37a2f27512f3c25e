"""Trains a two-stage pipeline with torch.distributed.pipelining: four micro-batches, the 1F1B schedule."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, BATCH, MICRO_BATCHES = 512, 256, 4


class Stage(nn.Module):
    """Half of the network."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self.watch = watch
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(4))
        )

    def forward(self, x: Tensor) -> Tensor:
        with self.watch.part("forward"):
            return self.layers(x)  # type: ignore[no-any-return]


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random inputs and what the network should make of them, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(BATCH, WIDTH, generator=generator)
        yield x, torch.fft.fft2(x).real.softmax(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    watch = Stopwatch(args.truth, rank, unknown=("backward",))

    def loss_function(output: Tensor, target: Tensor) -> Tensor:
        with watch.part("forward"):
            return nn.functional.mse_loss(output, target)

    stage = PipelineStage(Stage(watch), rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=loss_function)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-3)
    data = batches(seed=0)
    for _ in range(args.steps):
        with watch.part("data"):
            x, target = next(data)
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        with watch.part("optimizer"):
            optimizer.step()
        for loss in losses:
            watch.loss(loss.detach())
        watch.step_done()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
