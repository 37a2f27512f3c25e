"""Somebody else's DDP training with torch.profiler around it and no ranges, and one thing wrong: WHAT FOLDER."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WIDTH, STEPS = 256, 8


class Block(nn.Module):
    def __init__(self, buffer: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = (nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        if buffer:
            self.register_buffer("table", torch.zeros(buffer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


def main(what: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    blocks = [Block((1 << 19) if what == "buffers" else 0) for _ in range(8)]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = 1024 if what == "samples" and rank == 1 else 64
    traced = [ProfilerActivity.CPU]
    with profile(
        activities=traced, record_shapes=True, schedule=schedule(wait=1, warmup=1, active=STEPS - 2)
    ) as profiler:
        for _ in range(STEPS):
            for _ in range(4 if what == "accumulate" else 1):
                x, y = torch.randn(samples, WIDTH), torch.randint(0, 10, (samples,))
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if what == "sleep" and rank == 1:
                time.sleep(0.3)  # the thing that is wrong
            if what == "norms":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad.norm())
            if what == "extra":
                dist.all_reduce(torch.zeros(4 << 20))
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
