"""A check as a series: two arms, the order of their runs, and their numbers. Does not judge."""

from __future__ import annotations

import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, cycle, islice
from pathlib import Path
from typing import NamedTuple

from harness.analysis.statistics import FEWEST_RUNS
from harness.analysis.summary import Summary
from harness.common.errors import HarnessError, RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM, expanded, typed_words
from harness.experiment.exercises import Experiment, ProfiledTraining
from harness.explain.commands import same_command
from harness.launch.cancel import cancel
from harness.launch.job import Job
from harness.measure.request import load_summary, resolve_path
from harness.run import Run
from harness.site.site import Site
from harness.study.series.points import SeriesPoint, SeriesTask, prepared
from harness.study.series.runner import SeriesOutcome, SeriesProgress, Submitter, carry_out, submitter_for
from harness.study.series.runs import OPEN, Slot, named_runs, observed, runs_of
from harness.study.series.runs import measured as measured_runs

ARMS = ("a", "b")
BLOCKS = (("a", "b", "b", "a"), ("b", "a", "a", "b"))
OF_AN_ARM = len(BLOCKS[0]) // len(ARMS)  # runs of an arm in a block
MOST_FAILED = 2  # of an arm of which none completed: the next would fail, too
OTHER_LAUNCHES = "give A and B as before, or leave out --resume"
_FAILED = ("failed", "timeout", "node_fail", "stuck", "refused")


class MeasuredRun(NamedTuple):
    """A run with its summary. block: of neighbouring runs, in a check that made its runs itself."""

    name: str
    summary: Summary
    block: int | None = None


class CheckArm(NamedTuple):
    """One arm: its arguments, its runs, and a note for each run that is left out. treatment: what it has of its own
    beside a launch that both arms share, in words. commit: the whole hash of its revision."""

    arguments: str
    runs: list[MeasuredRun]
    notes: list[str]
    treatment: str | None = None
    commit: str | None = None


def arms_of_runs(typed: tuple[str, str]) -> tuple[CheckArm, CheckArm]:
    """Both arms from arguments that name runs.
    Raises RequestError: an argument names no run, or a run is given twice."""
    paths = [list(_paths(text)) for text in typed]
    every = [path for arm in paths for path in arm]
    if twice := next((path for path in every if every.count(path) > 1), None):
        raise RequestError(f"check: {twice.name} is given twice: a run cannot be compared with itself")
    return _arm(typed[0], paths[0]), _arm(typed[1], paths[1])


def _arm(arguments: str, paths: Sequence[Path]) -> CheckArm:
    states = [(path, _state(path)) for path in paths]
    whole = [path for path, state in states if state in ("completed", "")]
    notes = [f"{_short(path)} is left out: it is not complete ({state})" for path, state in states if path not in whole]
    return CheckArm(arguments, [measured(path) for path in whole], notes)


def measured(path: Path, block: int | None = None) -> MeasuredRun:
    """A run, or stored numbers, with its summary."""
    return MeasuredRun(_short(path), load_summary(str(path))[1], block)


def _paths(arguments: str) -> Iterator[Path]:
    """The runs, traces or stored summaries that the argument names: several with commas between them, or a series."""
    for word in arguments.split(","):
        if not word:
            raise RequestError(f"check: {arguments!r} has a comma without a run: drop it")
        runs = [] if expanded(word).exists() else named_runs(word)
        yield from (run.path for run in runs) if runs else (resolve_path(word).resolve(),)


def _state(path: Path) -> str:
    """How the run ended by its own word; empty for anything else than a run, which has no end."""
    if not Run(path).is_run:
        return ""
    own = Run(path).status()
    return own.state if own is not None else "not started"


def _short(path: Path) -> str:
    try:
        return Run(path).job_id if Run(path).is_run else path.name
    except WorkError:
        return path.name


def launch_of_arm(arm: CheckArm) -> str | None:
    """The arguments of the launch that made the first run of an arm; None if it is no launch of ours."""
    command = same_command(arm.runs[0].summary) if arm.runs else None
    return None if command is None else shlex.join(typed_words(command))


def commit_of_arm(arm: CheckArm) -> str | None:
    """The commit of the user's repository from which the arm's first run was made; None: it is not known."""
    program = ((arm.runs[0].summary.run or {}).get("program") or {}) if arm.runs else {}
    commit = (program.get("git") or {}).get("commit")
    return commit if isinstance(commit, str) else None


def slots(each: int) -> list[Slot]:
    """The runs of both arms, `each` times each, in order. With more runs the first ones stay the same."""
    made: Counter[str] = Counter()
    found = []
    for arm in islice(cycle(chain(*BLOCKS)), len(ARMS) * each):
        found.append(Slot(arm, made[arm]))
        made[arm] += 1
    return found


def block_of(repeat: int) -> int:
    return repeat // OF_AN_ARM


def submitter_of(tasks: Sequence[SeriesTask]) -> Submitter:
    """One allocation if the backend has a queue, or one for each block; on this machine one run after the other."""
    return submitter_for(tasks, way="series", smaller=(len(BLOCKS[0]),))


class ArmFailed(WorkError):
    """Of one arm, or of both, too few runs completed."""

    def __init__(self, sentence: str, arms: Sequence[str]) -> None:
        super().__init__(sentence)
        self.arms = list(arms)


class ArmLaunch(NamedTuple):
    """One arm as it was asked for. arguments: as typed behind `slurm.sh`."""

    arguments: list[str]
    experiment: Experiment
    site: Site


Launches = Mapping[str, ArmLaunch]
"""a and b."""


def new_series() -> str:
    """The name of a check, as no other has it."""
    return time.strftime("check-%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def tasks_of(launches: Launches, each: int) -> list[SeriesTask]:
    """The runs of both arms, `each` times each, in the order in which they are made.
    Raises RequestError: an arm cannot run at its site, or steps of the two could not be judged against each other."""
    asked = [(slot, launches[slot.key]) for slot in slots(each)]
    tasks = prepared(
        [SeriesPoint(key, one.experiment, one.site, repeat, [PROGRAM, *one.arguments]) for (key, repeat), one in asked]
    )
    _refuse_unlike({task.point.key: task.prepared.job for task in tasks})
    return tasks


def _refuse_unlike(jobs: Mapping[str, Job]) -> None:
    if not all(isinstance(job.experiment, ProfiledTraining) for job in jobs.values()):
        raise RequestError("check: only trainings have steps: use -e 1, -e 2 or -e 3, or a training of your own")
    a, b = (_sort(jobs[arm]) for arm in ARMS)
    differing = [f"{name} {of_a} and B {b[name]}" for name, of_a in a.items() if of_a != b[name]]
    if differing:
        raise RequestError(
            f"check: A has {'; A has '.join(differing)}: make them the same, or look at two runs with {COMMAND} compare"
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


def make_runs(series: str, tasks: list[SeriesTask], tell: Callable[[SeriesProgress], None]) -> SeriesOutcome:
    """Make the runs of the series that are not done, in order; those that failed before are made again.

    Raises:
        ArmFailed: an arm only fails.
        WorkError: another process makes these runs.
    """
    failed: Counter[str] = Counter()

    def watch(change: SeriesProgress) -> None:
        tell(change)
        if change.what in _FAILED:
            failed[change.slot.key] += 1
        elif change.what == "completed":
            failed[change.slot.key] = -len(tasks)
        if failed[change.slot.key] >= MOST_FAILED and not change.counts["running"]:
            where = f": {COMMAND} logs {change.run.job_id}" if change.run else f": {change.note}"
            sentence = f"{change.slot.key.upper()} failed {MOST_FAILED} times, and was not started again{where}"
            raise ArmFailed(sentence, [change.slot.key])

    return carry_out(series, tasks, watch, submitter_of(tasks), retry_failed=True)


def arms_made(arguments: Sequence[str], outcome: SeriesOutcome) -> tuple[CheckArm, CheckArm]:
    """Both arms with their completed runs. arguments: of each arm, as typed.
    Raises ArmFailed: fewer than two runs of an arm completed."""
    found, lacking = measured_runs(outcome.completed)
    a, b = (CheckArm(text, [], []) for text in arguments)
    for each in found:
        arm = a if each.slot.key == ARMS[0] else b
        arm.runs.append(MeasuredRun(each.run.job_id, each.summary, block_of(each.slot.repeat)))
    a.notes.extend([*lacking, *_left_out(outcome)])
    few = [letter for letter, arm in zip(ARMS, (a, b), strict=True) if len(arm.runs) < FEWEST_RUNS]
    if few:
        sentence = f"{' and '.join(few).upper()}: fewer than two runs completed"
        raise ArmFailed("\n".join([*a.notes, sentence]), few)
    return a, b


def _left_out(outcome: SeriesOutcome) -> Iterator[str]:
    """A sentence for each run that did not complete."""
    for place in outcome.places:
        if place.status != "done":
            slot = place.task.point.slot
            which = place.run.job_id if place.run else f"{slot.key.upper()}{slot.repeat + 1}"
            logs = f" ({COMMAND} logs {which})" if place.run else ""
            yield f"{which} is left out: {place.state or place.status}{logs}"


def stop_open(series: str) -> None:
    """Ask the runs of the series that wait in a queue or run to end: what they would start is being removed."""
    for run in runs_of(series):
        if observed(run).state in OPEN:
            with suppress(HarnessError):  # it ended meanwhile, or its scheduler does not answer
                cancel(run)
