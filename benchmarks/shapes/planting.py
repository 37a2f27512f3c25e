"""What the shapes share: their start, and how long what is planted takes, `<end, Unix ns> <ns>` per time it runs."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path

import torch
import torch.distributed as dist

PLANTED = os.environ.get("PLANT") == "1"
STEPS = int(os.environ.get("STEPS", "40"))


def start() -> tuple[int, int]:
    """The rank and the number of ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


@contextmanager
def planted() -> Iterator[None]:
    """Times what runs inside."""
    begin = time.perf_counter_ns()
    yield
    spent = time.perf_counter_ns() - begin
    if not _spent:
        atexit.register(_write)
        Finalize(None, _write, exitpriority=10)  # of a process that multiprocessing has started
    _spent.append(f"{time.time_ns()} {spent}\n")


_spent: list[str] = []


def _write() -> None:
    """At the end, because a write lets other threads run, such as one that samples this one's lines."""
    file = Path(f"{os.environ.get('RECORDS', 'planted')}.rank{os.environ['RANK']}")
    file.write_text("".join(_spent), encoding="utf-8")
