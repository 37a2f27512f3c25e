"""Records real traces on this machine's CPU: a small model, two ranks, every collective once per step.

Run as a program it is one rank: `python recorded.py FOLDER RANK`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import limit_s

WORLD_SIZE = 2
STEPS = 3
ELEMENTS = 96
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"]


def record(folder: Path) -> list[Path]:
    """Record a trace per rank into `folder`; raises CalledProcessError with the output of a rank."""
    command = [sys.executable, __file__, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, env=environment)
        for rank in range(WORLD_SIZE)
    ]
    said = [rank.communicate(timeout=limit_s(180))[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("\n".join(said))
    return [folder / f"rank{rank}.json" for rank in range(WORLD_SIZE)]


def _rank(folder: Path, rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(ELEMENTS, ELEMENTS))
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank{rank}.json")),
    ) as profiler:
        for step in range(STEPS + 3):
            with record_function(f"batch_{step}"):
                with record_function("forward"):
                    loss = model(torch.randn(4, ELEMENTS)).sum()
                with record_function("backward"):
                    loss.backward()
                _communicate()
            profiler.step()
    dist.destroy_process_group()


def _communicate() -> None:
    import torch
    import torch.distributed as dist

    part, whole = torch.ones(ELEMENTS), torch.empty(ELEMENTS * WORLD_SIZE)
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)
    dist.broadcast(part, 0)
    dist.all_to_all_single(torch.empty(ELEMENTS), part)
    dist.barrier()


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # the trace is written; threads of PyTorch may abort a process that ends by itself
