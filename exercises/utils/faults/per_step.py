"""Adds up what a fault takes in many small parts, and records one line per step."""

from __future__ import annotations

import time

from exercises.utils.faults.target import Target
from harness.common.faults import Fault


class PerStep:
    """The sum of a step, which ends with its update. What comes between steps, such as a check, belongs to none."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._fault, self._target = fault, target
        self._sum_ns = 0
        self._open: tuple[int, int] | None = None  # the step and when it began
        target.moments.at_begin(self._begin)
        target.moments.at("updated", self._end)
        target.until.callback(self._end)

    def add(self, ns: int) -> None:
        """The fault took `ns` more."""
        self._sum_ns += ns

    def _begin(self) -> None:
        self._end()  # a step whose gradients accumulate has no update
        self._sum_ns = 0
        self._open = (self._target.moments.step, time.time_ns())

    def _end(self) -> None:
        if self._open is not None:
            step, unix_ns = self._open
            self._target.record(self._fault, step, self._sum_ns, unix_ns)
            self._open = None
