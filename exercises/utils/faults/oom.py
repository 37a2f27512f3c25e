"""oom: a rank allocates memory until an allocation fails.

host: the address space of the process is limited a little above its size, and memory is allocated, but not written,
until Python raises MemoryError: the machine loses no memory. A kernel that ends a process for its memory sends KILL
instead, as `crash,kind=kill` does. cuda: the free memory of the GPU is allocated until PyTorch raises OutOfMemoryError.
"""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from exercises.utils.faults.moments import at_next_call
from exercises.utils.faults.target import Target
from harness.common.faults import Fault

HEADROOM = 2**28  # bytes: the other threads of the process allocate, too
CHUNK = 2**24


def inject(fault: Fault, target: Target) -> None:
    """Allocate in forward."""
    allocate = _on_gpu if fault.values["kind"] == "cuda" else _on_host
    target.once("forward", fault, lambda: at_next_call(allocate))


def _on_host() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    held = []
    try:
        while True:
            held.append(bytearray(CHUNK))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))  # what follows reports the error


def _on_gpu() -> None:
    chunk = max(CHUNK, torch.cuda.mem_get_info()[0] // 8)
    held = []
    while True:
        held.append(torch.empty(chunk, dtype=torch.uint8, device="cuda"))
