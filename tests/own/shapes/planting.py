"""What the shapes share: their start, and how long what is planted takes, `<end, Unix ns> <ns>` per time it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

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
    _records().write(f"{time.time_ns()} {spent}\n")


@cache
def _records() -> TextIO:
    file = Path(f"{os.environ.get('RECORDS', 'planted')}.rank{os.environ['RANK']}")
    return file.open("a", buffering=1, encoding="utf-8")
