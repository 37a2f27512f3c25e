"""The runs of a check that makes its own: in turn, under one name, and found again by it. Prints nothing.

The campaign makes them, waits for them and resumes; here is their order, and what must agree before one is made.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from harness.common.errors import RequestError, WorkError, nearest
from harness.common.paths import PROGRAM
from harness.experiment.exercises import Experiment, Profiled
from harness.launch.job import Job
from harness.run import all_runs, part_of
from harness.site.site import Site
from harness.study.campaign.points import Point, Task, prepared
from harness.study.campaign.runner import Change, Limits, SeriesOutcome, carry_out
from harness.study.campaign.series import runs_of
from harness.study.check.order import ARMS, slots
from harness.study.check.submitter import submitter_for

MOST_FAILED = 2  # of an arm of which none completed: the next would fail, too


class Launch(NamedTuple):
    """One arm as it was asked for. arguments: as typed behind `slurm.sh`."""

    arguments: list[str]
    experiment: Experiment
    site: Site


Launches = Mapping[str, Launch]
"""a and b."""


def new_series() -> str:
    """The name of a check, as no other has it."""
    return time.strftime("check-%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def known_series(name: str) -> str:
    """The name, if there are runs of it. Raises RequestError: there are none."""
    if runs_of(name):
        return name
    near = nearest(name, {part.series for run in all_runs() if (part := part_of(run)) is not None})
    hint = f": did you mean {near}?" if near else ""
    raise RequestError(f"--resume {name}: there is no run of such a check{hint}")


def tasks_of(launches: Launches, each: int) -> list[Task]:
    """The runs of both arms, `each` times each, in the order in which they are made.

    Raises:
        RequestError: an arm cannot run at its site, or steps of the two could not be judged against each other.
    """
    points = [
        Point(
            slot.arm,
            launches[slot.arm].experiment,
            launches[slot.arm].site,
            slot.repeat,
            ["slurm.sh", *launches[slot.arm].arguments],
        )
        for slot in slots(each)
    ]
    tasks = prepared(points)
    _refuse_unlike({task.point.key: task.prepared.job for task in tasks})
    return tasks


def _refuse_unlike(jobs: Mapping[str, Job]) -> None:
    if not all(isinstance(job.experiment, Profiled) for job in jobs.values()):
        raise RequestError(
            "check: only trainings have steps: use -e 1, -e 2 or -e 3, or a training of your own"
        )
    a, b = (_sort(jobs[arm]) for arm in ARMS)
    differing = [f"{name} {of_a} and B {b[name]}" for name, of_a in a.items() if of_a != b[name]]
    if differing:
        raise RequestError(
            f"check: A has {'; A has '.join(differing)}: make them the same, or look at two runs with {PROGRAM} compare"
        )


def _sort(job: Job) -> dict[str, str]:
    """What two jobs must share for their steps to be judged, as far as it is known before they run."""
    asked = job.experiment
    return {
        "exercise": str(asked.exercise),
        "ranks": str(asked.world_size),
        "profiler": job.profiler,
        "site": job.site.name,
        "model": job.model.name if job.model else "none",
    }


def make_runs(series: str, tasks: list[Task], tell: Callable[[Change], None]) -> SeriesOutcome:
    """Make the runs of the series that are not done, in order; those that failed before are made again.

    Raises:
        RequestError: the series was made of other launches.
        WorkError: an arm only fails, or another process makes these runs.
    """
    _refuse_other_launches(series, tasks)
    failed: Counter[str] = Counter()

    def watch(change: Change) -> None:
        tell(change)
        if change.what in _FAILED:
            failed[change.slot.key] += 1
        elif change.what == "completed":
            failed[change.slot.key] = -len(tasks)
        if failed[change.slot.key] >= MOST_FAILED and not change.counts["running"]:
            where = f": {PROGRAM} logs {change.run.job_id}" if change.run else f": {change.note}"
            raise WorkError(
                f"{change.slot.key.upper()} failed {MOST_FAILED} times, and was not started again{where}"
            )

    return carry_out(series, tasks, Limits(retry_failed=True), watch, submitter_for(tasks))


def _refuse_other_launches(series: str, tasks: list[Task]) -> None:
    asked = {task.point.key: (task.prepared.asked, task.point.site.name) for task in tasks}
    for run in runs_of(series):
        part = part_of(run)
        if part is None or asked.get(part.point) != (run.record.experiment, run.record.site.name):
            raise RequestError(
                f"--resume {series}: its run {run.job_id} was made with another launch: give A and B as before, or "
                "leave out --resume"
            )


_FAILED = ("failed", "timeout", "node_fail", "stuck", "refused")
