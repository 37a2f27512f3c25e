"""What is asked of a series: its points, and each one prepared for its site. Knows no run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment
from harness.launch.submit import Prepared, prepare
from harness.run import Part
from harness.site.site import Site

HOUR_NS = 3_600_000_000_000


class Slot(NamedTuple):
    """A place in a series that one completed run fills."""

    key: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.key} (repeat {self.repeat + 1})" if self.repeat else self.key


class Point(NamedTuple):
    """One run to make. key: the same text for the same setting. repeat: from 0. command: the words to record."""

    key: str
    experiment: Experiment
    site: Site
    repeat: int
    command: list[str]

    @property
    def slot(self) -> Slot:
        return Slot(self.key, self.repeat)

    def part(self, series: str) -> Part:
        """What its run's record says of it."""
        return Part(series=series, point=self.key, repeat=self.repeat)


class Task(NamedTuple):
    """A point, resolved for this machine and its site."""

    point: Point
    prepared: Prepared

    @property
    def devices(self) -> int:
        """GPUs; on a machine without them, processes."""
        return self.prepared.job.experiment.world_size or 1

    @property
    def worst_ns(self) -> int:
        """Devices × time limit, in nanoseconds: more it cannot take."""
        return self.devices * self.point.site.time_s * 1_000_000_000


def prepared(points: Sequence[Point]) -> list[Task]:
    """Every point resolved.

    Raises:
        RequestError: a point cannot run at its site, or two fill one slot; one line per reason.
    """
    tasks: list[Task] = []
    wrong: list[str] = []
    for point in points:
        try:
            tasks.append(Task(point, prepare(point.experiment, point.site)))
        except RequestError as error:
            wrong += [f"{point.key}: {line}" for line in str(error).splitlines()]
    slots = [point.slot for point in points]
    wrong += [f"{slot} is given twice" for slot in dict.fromkeys(slots) if slots.count(slot) > 1]
    if wrong:
        raise RequestError("\n".join(dict.fromkeys(wrong)))
    return tasks
