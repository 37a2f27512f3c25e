"""data-stall: the step's first batch comes late."""

from __future__ import annotations

import time

from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Sleep where the training waits for its batch."""
    target.when_due("load", fault, lambda: time.sleep(fault.ns() / 1e9))
