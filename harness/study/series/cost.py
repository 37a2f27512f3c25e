"""What the runs of a series have taken and may take at most: devices × time, of a run to come its time limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from harness.common.display.format import quantity
from harness.common.display.text import how_many
from harness.launch.backends.registry import backend_of
from harness.plan.numbers import Quantity
from harness.study.series.points import HOUR_NS, SeriesTask, cost_ns, devices_of, hours
from harness.study.series.runs import OPEN, ObservedRun

LIMIT = "the time limit"


class Use(NamedTuple):
    """So many devices for so long."""

    devices: int
    ns: float


def device_ns(uses: Iterable[Use]) -> float:
    return sum(use.devices * use.ns for use in uses)


def elapsed_ns(uses: Iterable[Use]) -> float:
    """One after the other."""
    return sum(use.ns for use in uses)


class SeriesCost(NamedTuple):
    """of_gpus: else of processes. here: the runs share this machine, so minutes are printed, and not device hours.

    spent: of the ended runs. running, worst: until the time limits of the open runs, and of those to make.
    """

    of_gpus: bool
    here: bool
    spent: list[Use]
    running: list[Use]
    worst: list[Use]
    to_make: Sequence[SeriesTask]

    @property
    def unit(self) -> str:
        return "GPU hours" if self.of_gpus else "process hours"

    @property
    def most_ns(self) -> float:
        """Device nanoseconds that all runs of the series take at most, those that have ended included."""
        return device_ns([*self.spent, *self.running, *self.worst])


def series_cost(
    tasks: Sequence[SeriesTask], to_make: Sequence[SeriesTask], runs: Sequence[ObservedRun] = ()
) -> SeriesCost:
    """tasks, runs: all of the series."""
    uses = [(each.state in OPEN, _use(each)) for each in runs]
    return SeriesCost(
        of_gpus=any(task.prepared.job.device == "cuda" for task in tasks),
        here=any(backend_of(task.point.site).RUNS_HERE for task in tasks),
        spent=[use for is_open, use in uses if not is_open],
        running=[use for is_open, use in uses if is_open],
        worst=[Use(task.devices, task.point.site.time_s * 1e9) for task in to_make],
        to_make=to_make,
    )


def _use(observed_run: ObservedRun) -> Use:
    devices = devices_of(observed_run.run)
    return Use(devices, cost_ns(observed_run) / devices)


def cost_lines(cost: SeriesCost) -> Iterator[str]:
    """What was spent, and what the runs to make take at most."""
    if device_ns([*cost.spent, *cost.running]):
        running = f", at most {_shown(cost, cost.running)} more by the running jobs" if cost.running else ""
        yield f"spent so far: {_shown(cost, cost.spent)}{running}"
    if cost.to_make:
        yield f"to make: {making(cost)}"


def making(cost: SeriesCost) -> str:
    """How many runs are to be made, and the most that they take."""
    sizes = sorted({(task.devices, task.point.site.time) for task in cost.to_make})
    limits = dict.fromkeys(time if cost.here else f"{devices} × {time}" for devices, time in sizes)
    at_most = f"at most {_shown(cost, cost.worst)} ({LIMIT}: {', '.join(limits)} each)"
    return f"{how_many(len(cost.to_make), 'run')}, {at_most}"


def _shown(cost: SeriesCost, uses: Sequence[Use]) -> str:
    return quantity(elapsed_ns(uses) / 1e9, "s") if cost.here else f"{hours(device_ns(uses))} {cost.unit}"


def cost_document(cost: SeriesCost) -> dict[str, Any]:
    """For JSON: each number with its unit."""
    unit = "GPU h" if cost.of_gpus else "process h"
    rows = [
        Quantity("spent_device_hours", "", device_ns(cost.spent) / HOUR_NS, unit),
        Quantity("running_device_hours", "", device_ns(cost.running) / HOUR_NS, unit, source=LIMIT),
        Quantity("most_device_hours", "", device_ns(cost.worst) / HOUR_NS, unit, source=LIMIT),
        Quantity("most_elapsed_s", "", elapsed_ns(cost.worst) / 1e9, "s", source=LIMIT),
    ]
    return {"runs": {"to_make": len(cost.to_make)}, **{row.name: row.as_json() for row in rows}}
