"""How much memory one rank may fill: its GPU's, by the site's name for it, or its share of this machine's memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from harness.launch.backends.registry import backend_of
from harness.launch.job import Job
from harness.theory.devices import TABLE, Device, find_device

FITS, TIGHT = 0.9, 1.0  # shares of the memory: the allocator fragments it, and an estimate is within a tenth


class Capacity(NamedTuple):
    """Bytes for one rank and where that is from; None and the reason if it is not known."""

    total_bytes: float | None
    source: str


def capacity_of(job: Job, ranks_per_node: int) -> Capacity:
    """The memory of one rank of the job."""
    if job.device == "cpu":
        return _of_this_machine(job, ranks_per_node)
    name = device_name(job)
    device = find_device(name)
    if getattr(job.experiment, "unified_memory", False):
        return Capacity(None, "with --unified-memory what does not fit on the GPU is in the host's memory")
    if device is None or device.memory_bytes is None:
        return Capacity(None, _nameless(job, name))
    return Capacity(device.memory_bytes, f"{name}: {device.memory_gib:g} GiB, {TABLE}")


def _nameless(job: Job, name: str | None) -> str:
    if name is None:
        return f"site {job.site.name} does not say what GPUs it has (gpus.name), so there is no verdict"
    return f"configs/devices.yaml has no memory for {name!r}, so there is no verdict"


def _of_this_machine(job: Job, ranks_per_node: int) -> Capacity:
    if not backend_of(job.site).RUNS_HERE:
        return Capacity(None, f"the memory of a CPU node of {job.site.name} is not known here")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Capacity(
        total / ranks_per_node, f"this machine's {total / 1e9:.1f} GB, shared by {ranks_per_node} processes"
    )


def device_of(job: Job) -> Device | None:
    """The device table's entry for the job's GPUs; None: it trains on CPUs, or there is no entry."""
    return find_device(device_name(job)) if job.device == "cuda" else None


def device_name(job: Job) -> str | None:
    """The model of the job's GPUs: as the site names it, or as this machine's driver does."""
    if job.site.gpus.name is not None or not backend_of(job.site).RUNS_HERE:
        return job.site.gpus.name
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(
            r"^Model:\s*(.+)$", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
        if found:
            return found[1].strip()
    return None
