"""Work of a known size on one device and how long it took, and the processes that do it. Knows no other rank."""

from __future__ import annotations

import os
import platform
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from harness.observe.metrics import record_environment

MIB = 1024**2
GEMM_ROWS = {"cpu": 512, "cuda": 8192}
# Far more than a last-level cache holds of it; on GPUs also than the 50 MiB of an H100.
COPY_BYTES = {"cpu": 64 * MIB, "cuda": 512 * MIB}
HOST_COPY_BYTES = 128 * MIB
WARM_UP_CALLS = 3
SLOWED = 4
SETUP_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Probe:
    """Work that a device does, and its amount per call. per_call: in the unit of the rate times seconds: 1e12 FLOP for
    TFLOP/s, 1e9 bytes for GB/s."""

    name: str
    unit: str
    per_call: float
    work: Callable[[], object]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gemm(device: torch.device) -> Probe:
    """A square matrix product: bf16 on GPUs, where trainings compute in it, float32 on CPUs."""
    rows = GEMM_ROWS[device.type]
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b, out = (torch.rand(rows, rows, device=device, dtype=kind) for _ in range(3))
    unit, flop = ("TFLOP/s", 1e12) if device.type == "cuda" else ("GFLOP/s", 1e9)
    return Probe("GEMM", unit, 2 * rows**3 / flop, lambda: torch.mm(a, b, out=out))


def memory_copy(device: torch.device) -> Probe:
    """A copy inside the device's memory; each byte counts twice, as it is read and written."""
    size = COPY_BYTES[device.type]
    source = torch.ones(size, device=device, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return Probe("memory", "GB/s", 2 * size / 1e9, lambda: target.copy_(source))


def host_copy(device: torch.device) -> Probe:
    """A copy from pinned host memory to the GPU."""
    source = torch.ones(HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(HOST_COPY_BYTES, device=device, dtype=torch.uint8)
    return Probe("host to GPU", "GB/s", HOST_COPY_BYTES / 1e9, lambda: target.copy_(source, non_blocking=True))


def of_device(device: torch.device) -> list[Probe]:
    return [gemm(device), memory_copy(device), *([host_copy(device)] if device.type == "cuda" else [])]


def time_calls(work: Callable[[], object], calls: int, device: torch.device, slowed: bool = False) -> float:
    """Seconds of `calls` calls, launched one after the other; `SLOWED` times as long where a slow rank is played."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    if slowed:
        time.sleep((SLOWED - 1) * (time.perf_counter() - begin))
    return time.perf_counter() - begin


def calls_for(work: Callable[[], object], seconds: float, device: torch.device) -> int:
    """How many calls take about `seconds`, at least one; warms up on the way."""
    for _ in range(WARM_UP_CALLS):
        work()
    return max(1, round(seconds / max(time_calls(work, 2, device) / 2, 1e-9)))


@contextmanager
def processes(options: Namespace, timeout: timedelta = SETUP_TIMEOUT) -> Iterator[torch.device]:
    """torch.distributed on this process's device, from torchrun's environment."""
    on_gpu = options.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timeout, device_id=device if on_gpu else None)
    environment = record_environment(options.run_dir, on_cuda=on_gpu) if os.environ["LOCAL_RANK"] == "0" else None
    try:
        yield device
        if environment is not None:
            environment.close()
    finally:
        dist.destroy_process_group()


def about(device: torch.device) -> dict[str, Any]:
    """Backend, device, ranks and hosts of this test. Every rank must call it."""
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    on_gpu = device.type == "cuda"
    return {
        "backend": dist.get_backend(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_gpu else f"CPU ({platform.machine()})",
        "world_size": dist.get_world_size(),
        "hosts": list(dict.fromkeys(hosts)),
        "ranks_per_node": int(os.environ["LOCAL_WORLD_SIZE"]),
        "torch": torch.__version__,
    }
