"""How many cores this process may use. Standard library only, for whoever asks."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """At least one. Where the system can say it (Linux), those the process is bound to: a job may have some of many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
