"""How the runs of a series get onto a machine: a protocol, and the chain, which submits the next when one ends.

A carrier knows neither budget nor order: the drive gives it the tasks that may start now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.launch.backends.registry import backend_of
from harness.launch.submit import cancel, state_of
from harness.run import Run, State
from harness.study.campaign.points import Task
from harness.study.start import start_run


class Carrier(Protocol):
    """Starts tasks and watches their runs."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks at the runs."""

    @property
    def runs_here(self) -> bool:
        """True: its runs share this machine and end with the drive. False: they stay in a queue."""

    def room(self, active: int) -> int:
        """How many more tasks it takes, while so many of its runs have not ended."""

    def start(self, series: str, tasks: Sequence[Task]) -> list[Run]:
        """Start the first one or more of `tasks`, at most `room`; returns their runs in order.

        Raises:
            RequestError, WorkError: nothing was started.
        """

    def state(self, run: Run) -> State:
        """The run's state now."""

    def stop(self, run: Run) -> None:
        """Ask the run to end. Raises WorkError: it cannot be stopped from here."""


class Chain:
    """One submission per task, at most so many at once; the next when one has ended."""

    def __init__(
        self, tasks: Sequence[Task], most_at_once: int, start: Callable[..., Run] = start_run
    ) -> None:
        backends = [backend_of(task.point.site) for task in tasks]
        self.runs_here = any(backend.RUNS_HERE for backend in backends)
        self.poll_s = max((backend.POLL_S for backend in backends), default=0.0)
        self._most, self._start = most_at_once, start

    def room(self, active: int) -> int:
        return self._most - active

    def start(self, series: str, tasks: Sequence[Task]) -> list[Run]:
        point, ready = tasks[0]
        return [self._start(ready, point.command, point.part(series))]

    def state(self, run: Run) -> State:
        return state_of(run)

    def stop(self, run: Run) -> None:
        cancel(run)
