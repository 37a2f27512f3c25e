"""The launches of a check, and their runs as they are made, with what they cost on standard error: of two launches, or
of two revisions of the user's repository."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.cli.command import read_launch
from harness.cli.launch.launch import request_of
from harness.cli.study.series import SeriesPlan, plan_of
from harness.cli.words import RUN
from harness.common.display.text import how_many
from harness.common.errors import HarnessError, RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM
from harness.common.system.secrets import masked_words
from harness.compare.comparison import USUAL_RUNS
from harness.launch.before.check import require_training
from harness.launch.before.from_shell import what_the_shell_brings
from harness.launch.exercises.base import launch_of
from harness.run import Run
from harness.study.check import series
from harness.study.check.result import Checked, Question, check_arms
from harness.study.check.revisions import (
    Repository,
    Revision,
    Worktrees,
    in_folder,
    repository_of,
    require_relative,
    revision_of,
    uncommitted,
    worktrees,
)
from harness.study.series.cost import making
from harness.study.series.points import SeriesTask
from harness.study.series.runner import SeriesOutcome, SeriesProgress
from harness.study.series.runs import known_series

_OF_A_LAUNCH = frozenset({"--plan", "--dry-run", "--explain", "--wait", "--follow", "--json"})
Arms = tuple[series.CheckArm, series.CheckArm]


class CheckRequest(NamedTuple):
    """What is asked besides A and B. runs: of each; None: as usual. options: the flags to repeat in a command that
    continues it."""

    question: Question
    runs: int | None
    resume: str | None
    options: list[str]


def launches_of(arguments: Sequence[Sequence[str]]) -> series.Launches:
    """Both arms from the arguments of their launches, program name first."""
    return {arm: launch(each, f"{arm.upper()}: ") for arm, each in zip(series.ARMS, arguments, strict=True)}


def launch(arguments: Sequence[str], which: str = "") -> series.ArmLaunch:
    """One launch, program name first. which: the first words of a sentence on what is wrong with it."""
    argv = list(arguments[arguments.index(PROGRAM) + 1 :])
    is_run = argv[:1] == [RUN]
    line = read_launch(argv[is_run:], is_run)
    if own := _OF_A_LAUNCH & {*line.unknown}:
        raise RequestError(f"{which}{min(own)} does not go with a launch inside of a check: drop it")
    try:
        experiment, choice = request_of(line)
        launch_of(experiment).refuse_ambiguous(experiment, line.given)
    except RequestError as error:
        raise RequestError("\n".join(f"{which}{each}" for each in str(error).splitlines())) from None
    return series.ArmLaunch(argv, experiment, choice.site)


def words_of(launch: series.ArmLaunch) -> str:
    """The launch as it was typed, without its secrets."""
    return shlex.join(masked_words(launch.arguments))


def make_arms(launches: series.Launches, request: CheckRequest) -> tuple[Arms, str]:
    """The runs of both arms, and the name of their series. Raises WorkError: fewer than two runs of an arm are left."""
    each = request.runs or USUAL_RUNS
    tasks = checked_tasks(launches, each)
    name = known_series(request.resume) if request.resume else series.new_series()
    announce(name, tasks, each)
    words = [words_of(launch) for launch in launches.values()]
    again = f"{COMMAND} check {shlex.join([*words, '--runs', str(each), *request.options, '--resume', name])}"
    return arms_of(words, made(name, tasks, again), again), name


def arms_of(words: Sequence[str], outcome: SeriesOutcome, again: str) -> Arms:
    """Both arms with their completed runs. words: of each launch. Raises WorkError: fewer than two of an arm."""
    try:
        return series.arms_made(words, outcome)
    except series.ArmFailed as failed:
        raise series.ArmFailed(f"{failed}; continue with: {again}") from None


def checked_tasks(launches: series.Launches, each: int) -> list[SeriesTask]:
    """The runs of both arms. Raises TrainingNeeded: this machine trains, and only the training packages are missing."""
    tasks = series.tasks_of(launches, each)
    for task in tasks[: len(series.ARMS)]:
        require_training(task.prepared.job, os.environ)
    return tasks


def announce(name: str, tasks: Sequence[SeriesTask], each: int) -> None:
    """How many runs there are, what they cost at most, and what the shell brings."""
    order = " ".join(slot.key.upper() for slot in series.slots(each))
    to_make = check_plan(name, tasks).to_make
    lines = [f"{name}: {len(tasks)} runs, alternating {order}", *([f"to make: {making(to_make)}"] if to_make else [])]
    lines += what_the_shell_brings(os.environ, *(task.prepared.job for task in tasks[: len(series.ARMS)]))
    print("\n  ".join(lines), file=sys.stderr)


def check_plan(name: str, tasks: Sequence[SeriesTask]) -> SeriesPlan:
    """What is still to make of the runs, and its cost. Raises RequestError: they were made of other launches."""
    return plan_of(name, tasks, retry_failed=True, advice=series.OTHER_LAUNCHES)


def made(name: str, tasks: list[SeriesTask], again: str) -> SeriesOutcome:
    """The runs of the series. again: the command that continues it, if it is interrupted or fails."""
    try:
        return series.make_runs(name, tasks, lambda change: _tell(change, len(tasks)))
    except (KeyboardInterrupt, HarnessError) as error:
        if not isinstance(error, RequestError):
            print(f"its runs are kept; continue with: {again}", file=sys.stderr)
        raise


def _tell(change: SeriesProgress, of: int) -> None:
    run = f": {change.run.job_id}" if change.run else ""
    note = f" ({change.note})" if change.note else ""
    place = f"{change.slot.key.upper()}{change.slot.repeat + 1}"
    print(f"{change.counts['done']} of {of} done; {place} {change.what}{run}{note}", file=sys.stderr)


Pair = tuple[Revision, Revision]


class RevisionArms(NamedTuple):
    """The revisions, checked; the name of their series, and what it was made of."""

    checked: Checked
    series: str
    launches: series.Launches


def check_revisions(revisions: tuple[str, str], words: Sequence[str], request: CheckRequest) -> RevisionArms:
    """The training in both revisions, judged. words: of the command that starts it.
    Raises RequestError: a revision is not there. WorkError: one cannot be checked out, or its runs fail."""
    base = launch(words)
    repository = repository_of(Path.cwd())
    require_relative(base, repository)
    a, b = (revision_of(repository, text) for text in revisions)
    _say_uncommitted(repository)
    name = known_series(request.resume) if request.resume else series.new_series()
    each = request.runs or USUAL_RUNS
    with worktrees(name, repository) as trees:
        launches = _launches(base, trees, (a, b))
        tasks = checked_tasks(launches, each)
        print(f"A: {a}\nB: {b}", file=sys.stderr)
        announce(name, tasks, each)
        again = ["--rev", a.short, b.short, words_of(base), "--runs", str(each), *request.options, "--resume", name]
        arms = _measured(trees, (a, b), name, tasks, f"{COMMAND} check {shlex.join(again)}")
    checked = check_arms(*arms, request.question)
    of_a, of_b = (
        arm.model_copy(update={"commit": revision.commit, "revision": str(revision)})
        for arm, revision in ((checked.a, a), (checked.b, b))
    )
    why = f"{b} against {a}: {checked.why}"
    return RevisionArms(checked.model_copy(update={"a": of_a, "b": of_b, "why": why}), name, launches)


def _launches(arm_launch: series.ArmLaunch, trees: Worktrees, revisions: Pair) -> series.Launches:
    return {arm: in_folder(arm_launch, trees.start_in(each)) for arm, each in zip(series.ARMS, revisions, strict=True)}


def _say_uncommitted(repository: Repository) -> None:
    if count := uncommitted(repository):
        files = how_many(count, "file")
        print(f"not measured: changes of {files} since the last commit in {repository.top}", file=sys.stderr)


def _measured(trees: Worktrees, revisions: Pair, name: str, tasks: list[SeriesTask], again: str) -> Arms:
    """The runs of both revisions, of which only those that miss runs are checked out.
    Raises WorkError: one cannot be checked out, its runs fail, or they executed other code."""
    of_arm = dict(zip(series.ARMS, revisions, strict=True))
    for arm in dict.fromkeys(task.point.key for task in check_plan(name, tasks).to_make):
        if not trees.is_there(of_arm[arm]):
            print(f"{arm.upper()}: checking out {of_arm[arm]}", file=sys.stderr)
            trees.make(of_arm[arm])
    try:
        outcome = made(name, tasks, again)
    except (KeyboardInterrupt, HarnessError):
        series.stop_open(name)
        raise
    for arm, revision in of_arm.items():
        if wrong := trees.wrong_code(revision, _runs(outcome, arm)):
            raise WorkError(wrong)
    words = [shlex.join(masked_words(task.point.command[1:])) for task in tasks[: len(of_arm)]]
    return arms_of(words, outcome, again)


def _runs(outcome: SeriesOutcome, arm: str) -> list[Run]:
    return [place.run for place in outcome.places if place.task.point.slot.key == arm and place.run is not None]
