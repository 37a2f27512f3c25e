"""Stops a run, through its backend."""

from __future__ import annotations

from typing import NamedTuple

from harness.launch.backends.protocol import PolledState
from harness.launch.backends.registry import backend_of_run
from harness.launch.poll import look_at
from harness.run import Run
from harness.run.record import FINAL


class Cancellation(NamedTuple):
    """The result of a cancellation: the run's state before it, and the other runs that end with it."""

    before: PolledState
    others: list[Run]


def cancel(run: Run) -> Cancellation:
    """Stop a run that has not ended. Raises WorkError: it could not be stopped."""
    before = look_at(run)
    over = before.state in FINAL
    return Cancellation(before, [] if over else backend_of_run(run).cancel(run))
