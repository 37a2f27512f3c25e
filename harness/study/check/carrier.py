"""How the runs of a check get onto a machine.

Where there is a queue all go into one allocation, so onto the same nodes and near each other in time; where that is
refused a block of them into one, and where that is, too, each is a job of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from harness.common.errors import WorkError
from harness.launch.backends.registry import backend_of
from harness.launch.submit import Start, go_together
from harness.run import Run, State
from harness.study.campaign.carrier import Carrier, Chain
from harness.study.campaign.points import Task
from harness.study.check.order import BLOCKS
from harness.study.start import start_together


class OneAllocation:
    """One allocation at a time, of the first tasks that go together."""

    runs_here = False

    def __init__(self, tasks: Sequence[Task], largest: int) -> None:
        self._chain = Chain(tasks, most_at_once=1)
        self.poll_s = self._chain.poll_s
        self._largest = largest

    def room(self, active: int) -> int:
        return 0 if active else self._largest

    def together(self, tasks: Sequence[Task]) -> int:
        jobs = [task.prepared.job for task in tasks[: self._largest]]
        return sum(1 for _ in takewhile(lambda job: go_together([jobs[0], job]), jobs))

    def start(self, series: str, tasks: Sequence[Task]) -> list[Run]:
        if len(tasks) == 1:
            return self._chain.start(series, tasks)
        starts = [Start(ready, point.command, point.part(series)) for point, ready in tasks]
        try:
            return start_together(starts, "series")
        except WorkError:  # so long an allocation may be over a limit that shorter ones keep
            self._largest = len(BLOCKS[0]) if len(tasks) > len(BLOCKS[0]) else 1
            return self.start(series, tasks[: self._largest])

    def state(self, run: Run) -> State:
        return self._chain.state(run)

    def stop(self, run: Run) -> None:
        self._chain.stop(run)


def carrier_for(tasks: Sequence[Task]) -> Carrier:
    """One allocation where the backend has a queue; on this machine one run after the other."""
    largest = min(backend_of(task.point.site).most_together("series") for task in tasks)
    return OneAllocation(tasks, largest) if largest > 1 else Chain(tasks, most_at_once=1)
