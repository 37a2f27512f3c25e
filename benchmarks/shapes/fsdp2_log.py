"""fully_shard. Planted: rank 1 writes its log to the disk in each step."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

WIDTH = 256


class Log:
    def __init__(self, file: Path) -> None:
        self.file = file.open("w", encoding="utf-8")

    def write(self, step: int, model: nn.Module) -> None:
        for name, weight in model.named_parameters():  # plant
            values = weight.to_local().flatten()[:1500].tolist()  # plant
            self.file.write(f"{step} {name} {' '.join(map(str, values))}\n")  # plant
            self.file.flush()  # plant
        os.fsync(self.file.fileno())  # plant


def main() -> None:
    rank, _ = start()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)), nn.Linear(WIDTH, 8))
    for layer in model:
        fully_shard(layer, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    log = Log(Path(f"weights.{rank}.log"))
    for step in range(STEPS):
        samples = torch.randn(256, WIDTH)
        output: Tensor = model(samples)
        loss = output.pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if PLANTED and rank == 1:
            with planted():
                log.write(step, model)  # plant


if __name__ == "__main__":
    main()
