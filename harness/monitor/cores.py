"""How many cores this process may use, and of which machine. Standard library only, for whoever asks."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def usable_cores() -> int:
    """At least one. Where the system can say it (Linux), those the process is bound to: a job may have some of many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def boot_id() -> str | None:
    """The same for all processes of one machine since it was started, whatever they call their host; None where the
    system does not say it (it is Linux's)."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
