"""The cores that this process may use, and the machine's id. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def usable_cores() -> int:
    """Number of cores, at least one; on Linux of those that the process is bound to, as a job may have only some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def boot_id() -> str | None:
    """An id of the machine since its last start, the same for all its processes; None on systems other than Linux."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
