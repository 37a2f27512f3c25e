"""How long the training's thread waited for a core, as Linux counts it: for faults that take its cores."""

from __future__ import annotations

import time
from pathlib import Path

from exercises.utils.faults.target import Target
from harness.common.faults import Fault

# Time on a core, time in the queue for one (ns), turns: kernel, Documentation/scheduler/sched-stats.rst. Of the thread
# that reads; a kernel without CONFIG_SCHED_INFO has no such file, and then nothing is recorded.
COUNTS = Path("/proc/thread-self/schedstat")


def record_waiting(fault: Fault, target: Target) -> None:
    """Record from each step's begin to the next one's how long the thread that trains waited for a core."""
    if COUNTS.exists():
        waiting = _Waiting(fault, target)
        target.moments.at_begin(waiting.step_begins)
        target.until.callback(waiting.step_ends)


class _Waiting:
    def __init__(self, fault: Fault, target: Target) -> None:
        self._fault, self._target = fault, target
        self._at_begin: tuple[int, int, int] | None = (
            None  # of the step: its number, the waiting so far, the time
        )

    def step_begins(self) -> None:
        self.step_ends()
        self._at_begin = (self._target.moments.step, waited_ns(), time.time_ns())

    def step_ends(self) -> None:
        if self._at_begin is not None:
            step, before_ns, unix_ns = self._at_begin
            self._target.record(self._fault, step, waited_ns() - before_ns, unix_ns)


def waited_ns() -> int:
    """Time that the calling thread has waited for a core since it began, in nanoseconds."""
    return int(COUNTS.read_text(encoding="ascii").split()[1])
