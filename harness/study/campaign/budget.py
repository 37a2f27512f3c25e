"""Device hours of a series: what its runs took, what those that run may take, and whether one more fits the cap.

All in integer nanoseconds of one device (a GPU; without GPUs, a process). Starts nothing; reads only runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from harness.run import Run
from harness.study.campaign.points import HOUR_NS, Slot, Task
from harness.study.campaign.task_status import OPEN, ObservedRun, TaskStatus


def devices_of(run: Run) -> int:
    """GPUs or processes of a run, as it was resolved."""
    asked = run.record.job["experiment"]
    return int(asked["nodes"]) * int(asked.get("gpus_per_node") or 1)


def elapsed_ns(run: Run) -> int | None:
    """From the script's start to its end; None if it did not write both."""
    own = run.status()
    if own is None or own.started_ns is None or own.ended_ns is None:
        return None
    return max(0, own.ended_ns - own.started_ns)


def cost_ns(each: ObservedRun) -> int:
    """Devices × time of a run: elapsed if it is known, 0 if it never began, else its time limit."""
    limit_ns = each.run.record.site.time_s * 1_000_000_000
    if each.state in OPEN:
        return devices_of(each.run) * limit_ns
    if not each.began:
        return 0
    known = elapsed_ns(each.run)
    return devices_of(each.run) * (limit_ns if known is None else known)


def hours(device_ns: float) -> str:
    """Device hours for people: `1.25`, `0.004`."""
    value = device_ns / HOUR_NS
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}" if value else "0"


class Estimate(NamedTuple):
    """What a series took and will take, in device nanoseconds. expected_ns: None without a completed run."""

    spent_ns: int
    running_ns: int
    worst_ns: int  # of the runs to make
    expected_ns: float | None


def estimate(places: Sequence[TaskStatus], runs: Sequence[ObservedRun], to_make: Sequence[Task]) -> Estimate:
    """runs: all of the series. to_make: the tasks to start.

    Expected: each task takes its devices × the mean elapsed time of the completed runs of its key, else of the series.
    """
    spent = sum(cost_ns(each) for each in runs if each.state not in OPEN)
    running = sum(cost_ns(each) for each in runs if each.state in OPEN)
    worst = sum(task.worst_ns for task in to_make)
    return Estimate(spent, running, worst, _expected(_elapsed_by_slot(places), to_make))


def _elapsed_by_slot(places: Sequence[TaskStatus]) -> dict[Slot, int]:
    done = {
        place.task.point.slot: elapsed_ns(place.run)
        for place in places
        if place.status == "done" and place.run
    }
    return {slot: known for slot, known in done.items() if known is not None}


def _expected(took_ns: dict[Slot, int], to_make: Sequence[Task]) -> float | None:
    if not took_ns:
        return None
    of_all = mean(took_ns.values())
    total = 0.0
    for task in to_make:
        same = [ns for slot, ns in took_ns.items() if slot.key == task.point.key]
        total += task.devices * (mean(same) if same else of_all)
    return total


def affordable(tasks: Sequence[Task], committed_ns: int, cap_ns: int | None, most: int) -> list[Task]:
    """The first tasks, at most `most`, that cannot pass the cap together with what is committed."""
    found: list[Task] = []
    for task in tasks[: max(0, most)]:
        committed_ns += task.worst_ns
        if cap_ns is not None and committed_ns > cap_ns:
            break
        found.append(task)
    return found


def why_too_much(task: Task, spent_ns: int, cap_ns: int) -> str:
    """The sentence of a series that stops before its cap."""
    each = f"{task.devices} × {task.point.site.time} = {hours(task.worst_ns)}"
    return (
        f"stopped before the cap: {hours(spent_ns)} device hours are spent, the next run ({task.point.slot}) may take "
        f"{each}, and --max-gpu-hours is {hours(cap_ns)}: raise it, or shorten the worst case with --time"
    )
