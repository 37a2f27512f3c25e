"""pinned-together: all ranks of a node share one core, as after a wrong binding."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from exercises.utils.faults.core_wait import record_waiting
from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Bind every thread of this process to the node's common core; those that start later inherit it."""
    core = _common_core()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            before = os.sched_getaffinity(int(thread.name))
            os.sched_setaffinity(int(thread.name), {core})
            target.until.callback(_free, int(thread.name), before)
    record_waiting(fault, target)


def _free(thread: int, cores: set[int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


def _common_core() -> int:
    """The first core of the node's first rank, which tells the others through the process group's store."""
    first = min(os.sched_getaffinity(0))
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return first
    store = dist.distributed_c10d._get_default_store()
    key = f"harness/core/{os.environ.get('GROUP_RANK', '0')}"
    if os.environ.get("LOCAL_RANK", "0") == "0":
        store.set(key, str(first))
    return int(store.get(key))
