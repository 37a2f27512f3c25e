"""pause: the whole process is stopped, as by an operating system that has other work."""

from __future__ import annotations

import os
import time
from bisect import bisect_right

from exercises.utils.faults.side_process import SideProcess
from exercises.utils.faults.target import Target
from harness.common.faults import Fault

GOLDEN = 0.6180339887  # its multiples, without their whole parts, visit every part of a step


def inject(fault: Fault, target: Target) -> None:
    """Let a side process stop this one in each step that is due."""
    pauses = _Pauses(fault, target)
    target.moments.at_begin(pauses.step_begins)
    target.until.callback(pauses.close)


class _Pauses:
    """Asks the side process for pauses, and records those that it reports."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._fault, self._target = fault, target
        self._stopper = SideProcess("stopper", os.getpid())
        self._begins_ns: list[int] = []  # of the steps, by the monotonic clock that all processes share
        self._asked = 0
        self._stopped_ns = 0  # in the step before

    def step_begins(self) -> None:
        """Record the pauses so far; ask for the next one at a moment inside this step, if it is like the last one."""
        self._stopped_ns = 0
        self._record()
        self._begins_ns.append(time.monotonic_ns())
        if self._fault.due(self._target.moments.step):
            self._asked += 1
            delay_ns = int((self._asked + 7 * self._target.rank) * GOLDEN % 1 * self._usual_step_ns())
            self._stopper.send(f"{delay_ns} {self._fault.ns()}")

    def _usual_step_ns(self) -> int:
        if len(self._begins_ns) < 2:
            return 0
        return max(0, self._begins_ns[-1] - self._begins_ns[-2] - self._stopped_ns)

    def _record(self) -> None:
        for report in self._stopper.received():
            begin_ns, ns, unix_ns = map(int, report.split())
            self._stopped_ns += ns
            step = bisect_right(self._begins_ns, begin_ns) - 1
            self._target.record(self._fault, step, ns, unix_ns)

    def close(self) -> None:
        """No pause begins any more."""
        self._stopper.close()
        self._record()
