"""noisy-neighbour: other processes use the cores of a rank."""

from __future__ import annotations

from exercises.utils.faults.core_wait import record_waiting
from exercises.utils.faults.side_process import SideProcess
from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Start them on the cores on which this process may run, at its priority; they end with it."""
    for _ in range(fault.count("procs")):
        target.until.callback(SideProcess("burner").kill)
    record_waiting(fault, target)
