"""The state of each point of a series, from its runs on disk. Starts nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from harness.common.errors import RequestError, WorkError
from harness.launch.submit import state_of
from harness.run import FINAL, Run, State
from harness.study.campaign.points import Slot, Task

TaskState = Literal["to do", "running", "done", "failed"]
# Of a run that may still be running; `unknown` is a scheduler that does not answer.
OPEN: frozenset[State] = frozenset({"queued", "running", "unknown"})


class ObservedRun(NamedTuple):
    """A run of the series and its state. began: its script started."""

    run: Run
    state: State
    began: bool

    @property
    def slot(self) -> Slot:
        return slot_of(self.run)


class TaskStatus(NamedTuple):
    """A task's place, and the run that decides it. kept: earlier runs of it that do not count."""

    task: Task
    status: TaskState
    run: Run | None = None
    state: State | None = None
    kept: tuple[ObservedRun, ...] = ()


def slot_of(run: Run) -> Slot:
    """The place that the run was made for."""
    part = run.record.part
    return Slot(part.point, part.repeat) if part else Slot("", 0)


def began(run: Run) -> bool:
    """Whether the run's script ever started: its first act is to open its log."""
    own = run.status()
    return (own is not None and own.started_ns is not None) or run.out.exists()


def observed(run: Run) -> ObservedRun:
    """The run with its state now."""
    own = run.status() or run.record.status
    if own is not None and own.state in FINAL:
        return ObservedRun(run, own.state, own.told_by is None or began(run))
    try:
        state = state_of(run)
    except WorkError:  # the backend of another installation
        state = "unknown"
    return ObservedRun(run, state, began(run))


def task_statuses(tasks: Sequence[Task], runs: Sequence[ObservedRun]) -> list[TaskStatus]:
    """Each task's place. runs: of the whole series, oldest first.

    A completed run makes it done; a run that waits or runs, or may (unknown), is waited for. A run that never began, as
    its submitter was killed, or that was cancelled is kept, and the task is to do. Any other end is a failure.
    """
    own: dict[Slot, list[ObservedRun]] = defaultdict(list)
    for each in runs:
        own[each.slot].append(each)
    return [_task_status(task, own[task.point.slot]) for task in tasks]


def _task_status(task: Task, runs: list[ObservedRun]) -> TaskStatus:
    for status, states in (("done", {"completed"}), ("running", OPEN)):
        for each in runs:
            if each.state in states:
                others = tuple(other for other in runs if other is not each)
                return TaskStatus(task, status, each.run, each.state, others)  # type: ignore[arg-type]  # a literal
    if not runs or not runs[-1].began or runs[-1].state == "cancelled":
        return TaskStatus(task, "to do", kept=tuple(runs))
    return TaskStatus(task, "failed", runs[-1].run, runs[-1].state, tuple(runs[:-1]))


def refuse_other_settings(series: str, places: Sequence[TaskStatus]) -> None:
    """Raises RequestError: runs of this series were made with other settings for the same points."""
    for place in places:
        asked, site = place.task.prepared.asked, place.task.point.site.name
        for run in [*([place.run] if place.run else []), *(each.run for each in place.kept)]:
            if run.record.experiment != asked or run.record.site.name != site:
                raise RequestError(
                    f"series {series}: its run {run.job_id} for {place.task.point.slot} was made with other settings "
                    f"({_difference(run, place.task)}): give the new one another name with --name"
                )


def _difference(run: Run, task: Task) -> str:
    before, now = run.record.experiment.model_dump(), task.prepared.asked.model_dump()
    changed = [
        f"{name} {before.get(name)}, now {value}" for name, value in now.items() if before.get(name) != value
    ]
    site = run.record.site.name
    return ", ".join(changed) or f"site {site}, now {task.point.site.name}"
