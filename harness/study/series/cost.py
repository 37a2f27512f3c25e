"""What the runs of a series that are to be made take at most: devices × time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.common.display.format import quantity, rate
from harness.common.display.text import how_many
from harness.launch.backends.registry import backend_of
from harness.plan.numbers import Quantity
from harness.study.series.points import SeriesTask

LIMIT = "the time limit"


def making(to_make: Sequence[SeriesTask]) -> str:
    """How many runs are to be made, and the most that they take; on this machine the time of one after the other."""
    here = any(backend_of(task.point.site).RUNS_HERE for task in to_make)
    most = quantity(_seconds(to_make), "s") if here else f"{rate(_device_hours(to_make))} {_unit(to_make)} hours"
    sizes = sorted({(task.devices, task.point.site.time) for task in to_make})
    limits = dict.fromkeys(time if here else f"{devices} × {time}" for devices, time in sizes)
    return f"{how_many(len(to_make), 'run')}, at most {most} ({LIMIT}: {', '.join(limits)} each)"


def cost_document(to_make: Sequence[SeriesTask]) -> dict[str, Any]:
    """For JSON: each number with its unit."""
    rows = [
        Quantity("most_device_hours", "", _device_hours(to_make), f"{_unit(to_make)} h", source=LIMIT),
        Quantity("most_elapsed_s", "", _seconds(to_make), "s", source=LIMIT),
    ]
    return {"runs": {"to_make": len(to_make)}, **{row.name: row.as_json() for row in rows}}


def _device_hours(tasks: Sequence[SeriesTask]) -> float:
    return sum(task.devices * task.point.site.time_s for task in tasks) / 3600


def _seconds(tasks: Sequence[SeriesTask]) -> float:
    return float(sum(task.point.site.time_s for task in tasks))


def _unit(tasks: Sequence[SeriesTask]) -> str:
    return "GPU" if any(task.prepared.job.device == "cuda" for task in tasks) else "process"
