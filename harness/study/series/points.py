"""The points of a series: each prepared for its site, and the state of its task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment
from harness.launch.submit import PreparedLaunch, prepare
from harness.run import Run
from harness.run.record import SeriesPart, State
from harness.site.site import Site
from harness.study.series.runs import OPEN, ObservedRun, Slot, slot_of


class SeriesPoint(NamedTuple):
    """One run to make. key: the same text for the same setting. repeat: from 0. command: the words to record."""

    key: str
    experiment: Experiment
    site: Site
    repeat: int
    command: list[str]

    @property
    def slot(self) -> Slot:
        return Slot(self.key, self.repeat)

    def part(self, series: str) -> SeriesPart:
        """What its run's record says of it."""
        return SeriesPart(series=series, point=self.key, repeat=self.repeat)


class SeriesTask(NamedTuple):
    """A point, resolved for this machine and its site."""

    point: SeriesPoint
    prepared: PreparedLaunch

    @property
    def devices(self) -> int:
        """GPUs; on a machine without them, processes."""
        return self.prepared.job.experiment.world_size or 1


def prepared(points: Sequence[SeriesPoint]) -> list[SeriesTask]:
    """Every point resolved.
    Raises RequestError: a point cannot run at its site, or two fill one slot; one line per reason."""
    tasks: list[SeriesTask] = []
    wrong: list[str] = []
    for point in points:
        try:
            tasks.append(SeriesTask(point, prepare(point.experiment, point.site)))
        except RequestError as error:
            wrong += [f"{point.key}: {line}" for line in str(error).splitlines()]
    slots = [point.slot for point in points]
    wrong += [f"{slot} is given twice" for slot in dict.fromkeys(slots) if slots.count(slot) > 1]
    if wrong:
        raise RequestError("\n".join(dict.fromkeys(wrong)))
    return tasks


TaskState = Literal["to do", "running", "done", "failed"]


class TaskStatus(NamedTuple):
    """A task's place, and the run that decides it. kept: earlier runs of it that do not count."""

    task: SeriesTask
    status: TaskState
    run: Run | None = None
    state: State | None = None
    kept: tuple[ObservedRun, ...] = ()


def counts(places: Iterable[TaskStatus]) -> dict[str, int]:
    found = dict.fromkeys(("done", "running", "to do", "failed"), 0)
    for place in places:
        found[place.status] += 1
    return found


def task_statuses(tasks: Sequence[SeriesTask], runs: Sequence[ObservedRun]) -> list[TaskStatus]:
    """Each task's place. runs: of the whole series, oldest first.

    A completed run makes it done; a run that waits or runs, or may (unknown), is waited for. A run that never began, as
    its submitter was killed, or that was cancelled is kept, and the task is to do. Any other end is a failure.
    """
    own: dict[Slot, list[ObservedRun]] = defaultdict(list)
    for each in runs:
        own[slot_of(each.run)].append(each)
    return [_task_status(task, own[task.point.slot]) for task in tasks]


def _task_status(task: SeriesTask, runs: list[ObservedRun]) -> TaskStatus:
    for status, states in (("done", {"completed"}), ("running", OPEN)):
        for each in runs:
            if each.state in states:
                others = tuple(other for other in runs if other is not each)
                return TaskStatus(task, status, each.run, each.state, others)  # type: ignore[arg-type]  # a literal
    if not runs or not runs[-1].began or runs[-1].state == "cancelled":
        return TaskStatus(task, "to do", kept=tuple(runs))
    return TaskStatus(task, "failed", runs[-1].run, runs[-1].state, tuple(runs[:-1]))


def refuse_other_settings(series: str, tasks: Iterable[SeriesTask], runs: Iterable[Run], advice: str) -> None:
    """Raises RequestError: a run of the series was made with other settings for one of these points."""
    asked = {task.point.key: task for task in tasks}
    for run in runs:
        task = asked.get(slot_of(run).key)
        before = run.record.experiment, run.record.site.name
        if task is not None and before != (task.prepared.experiment, task.point.site.name):
            raise RequestError(
                f"series {series}: its run {run.job_id} for {slot_of(run)} was made with other settings "
                f"({_changed_settings(run, task)}): {advice}"
            )


def _changed_settings(run: Run, task: SeriesTask) -> str:
    before, now = run.record.experiment.model_dump(), task.prepared.experiment.model_dump()
    changed = [f"{name} {before.get(name)}, now {value}" for name, value in now.items() if before.get(name) != value]
    site = run.record.site.name
    return ", ".join(changed) or f"site {site}, now {task.point.site.name}"
