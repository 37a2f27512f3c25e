"""How long the training's thread waited for a core, as Linux counts it: for faults that take its cores."""

from __future__ import annotations

import time

from exercises.utils.faults.target import Target
from harness.common.faults import Fault
from harness.observe.host_counters import waited_ns


def record_waiting(fault: Fault, target: Target) -> None:
    """Record from each step's begin to the next one's the time for which the training thread waited for a core."""
    if waited_ns() is not None:  # Linux may not count it, and then nothing is recorded
        waiting = _Waiting(fault, target)
        target.moments.at_begin(waiting.step_begins)
        target.until.callback(waiting.step_ends)


class _Waiting:
    def __init__(self, fault: Fault, target: Target) -> None:
        self._fault, self._target = fault, target
        self._at_begin: tuple[int, int, int] | None = None  # the step's number, the waiting so far, the time

    def step_begins(self) -> None:
        self.step_ends()
        self._at_begin = (self._target.moments.step, waited_ns() or 0, time.time_ns())

    def step_ends(self) -> None:
        if self._at_begin is not None:
            step, before_ns, unix_ns = self._at_begin
            self._target.record(self._fault, step, (waited_ns() or 0) - before_ns, unix_ns)
