"""gc: Python's garbage collector goes through a large heap, while the training waits."""

from __future__ import annotations

import gc

from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Make the heap, and collect in forward: nothing is found, and every object is looked at."""
    heap = [{"next": [number]} for number in range(1000 * fault.count("objects"))]
    target.until.callback(heap.clear)

    def collect() -> None:
        gc.collect()

    target.when_due("forward", fault, collect)
