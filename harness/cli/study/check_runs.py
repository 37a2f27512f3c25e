"""The launches of a check, and their runs as they are made, with what they cost on standard error."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from harness.cli.command_line import BEHAVIOUR, RUN, declared, read_launch
from harness.cli.launch.launch import request_of
from harness.common.errors import HarnessError, RequestError
from harness.common.paths import IN_CHECKOUT, PROGRAM
from harness.common.secrets import masked_words
from harness.launch.check import require_training
from harness.launch.exercises.base import launch_of
from harness.launch.submit import what_the_shell_brings
from harness.study.check import series
from harness.study.check.result import Question
from harness.study.series.cost import SeriesCost, cost_lines, series_cost
from harness.study.series.folder import runs_of
from harness.study.series.points import Task, observed, task_statuses
from harness.study.series.runner import Change, SeriesOutcome, to_make

USUAL_RUNS = 4  # of each arm
_OWN = {name for each in BEHAVIOUR for name in each.names} - {"--site"}
Arms = tuple[series.CheckArm, series.CheckArm]


class CheckRequest(NamedTuple):
    """What is asked besides A and B. runs: of each; None: as usual. build: as typed. options: the flags to repeat in a
    command that continues it."""

    question: Question
    runs: int | None
    resume: str | None
    build: str | None
    options: list[str]


def launches_of(arguments: Sequence[Sequence[str]]) -> series.Launches:
    """Both arms from the arguments of their launches, program name first."""
    return {arm: launch(each, f"{arm.upper()}: ") for arm, each in zip(series.ARMS, arguments, strict=True)}


def launch(arguments: Sequence[str], which: str = "") -> series.Launch:
    """One launch, program name first. which: the first words of a sentence on what is wrong with it."""
    if not IN_CHECKOUT:
        raise RequestError("check: launching needs the checkout: run `bash slurm.sh check` there, or give runs")
    argv = list(arguments[arguments.index(PROGRAM) + 1 :])
    is_run = argv[:1] == [RUN]
    line = read_launch(argv[is_run:], declared(), is_run)
    if own := _OWN & line.given.keys():
        raise RequestError(f"{which}{min(own)} does not go with a launch inside of a check: drop it")
    try:
        experiment, choice = request_of(line)
        launch_of(experiment).refuse_ambiguous(experiment, line.given)
    except RequestError as error:
        raise RequestError("\n".join(f"{which}{each}" for each in str(error).splitlines())) from None
    return series.Launch(argv, experiment, choice.site)


def words_of(launch: series.Launch) -> str:
    """The launch as it was typed, without its secrets."""
    return shlex.join(masked_words(launch.arguments))


def make_arms(launches: series.Launches, asked: CheckRequest) -> tuple[Arms, str]:
    """The runs of both arms, and the name of their series. Raises WorkError: fewer than two runs of an arm are left."""
    each = asked.runs or USUAL_RUNS
    tasks = checked_tasks(launches, each)
    name = series.known_series(asked.resume) if asked.resume else series.new_series()
    announce(name, tasks, each)
    words = [words_of(launch) for launch in launches.values()]
    again = shlex.join([PROGRAM, "check", *words, "--runs", str(each), *asked.options, "--resume", name])
    return arms_of(words, made(name, tasks, again), again), name


def arms_of(words: Sequence[str], outcome: SeriesOutcome, again: str) -> Arms:
    """Both arms with their completed runs. words: of each launch. Raises WorkError: fewer than two of an arm."""
    try:
        return series.arms_made(words, outcome)
    except series.ArmFailed as failed:
        raise series.ArmFailed(failed.arm, f"{failed}; continue with: {again}") from None


def checked_tasks(launches: series.Launches, each: int) -> list[Task]:
    """The runs of both arms. Raises TrainingNeeded: this machine trains, and only the training packages are missing."""
    tasks = series.tasks_of(launches, each)
    for task in tasks[: len(series.ARMS)]:
        require_training(task.prepared.job, os.environ)
    return tasks


def announce(name: str, tasks: Sequence[Task], each: int) -> None:
    """How many runs there are, what they should cost, and what the shell brings."""
    order = " ".join(slot.key.upper() for slot in series.slots(each))
    lines = [f"{name}: {len(tasks)} runs, alternating {order}", *cost_lines(cost_of(name, tasks))]
    lines += what_the_shell_brings(os.environ, *(task.prepared.job for task in tasks[: len(series.ARMS)]))
    print("\n  ".join(lines), file=sys.stderr)


def cost_of(name: str, tasks: Sequence[Task]) -> SeriesCost:
    runs = [observed(run) for run in runs_of(name)]
    return series_cost(tasks, to_make(task_statuses(tasks, runs), retry_failed=True), runs)


def made(name: str, tasks: list[Task], again: str) -> SeriesOutcome:
    """The runs of the series. again: the command that continues it, if it is interrupted or fails."""
    try:
        return series.make_runs(name, tasks, lambda change: _tell(change, len(tasks)))
    except (KeyboardInterrupt, HarnessError) as error:
        if not isinstance(error, RequestError):
            print(f"its runs are kept; continue with: {again}", file=sys.stderr)
        raise


def _tell(change: Change, of: int) -> None:
    run = f": {change.run.job_id}" if change.run else ""
    note = f" ({change.note})" if change.note else ""
    place = f"{change.slot.key.upper()}{change.slot.repeat + 1}"
    print(f"{change.counts['done']} of {of} done; {place} {change.what}{run}{note}", file=sys.stderr)
