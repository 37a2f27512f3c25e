"""The launches of a check, and their runs as they are made, with what they cost on standard error: of two launches, or
of one launch under two environments or in two revisions of the user's repository."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from harness.study.check.result import Question
from harness.study.check.revisions import (
    Repository,
    Revision,
    Worktrees,
    repository_of,
    require_relative,
    revision_of,
    uncommitted,
    worktrees,
)
from harness.study.check.treatment import AS_IT_IS, ArmEnvironment, Treatment
from harness.study.series.cost import making
from harness.study.series.points import SeriesTask
from harness.study.series.runner import SeriesOutcome, SeriesProgress
from harness.study.series.runs import known_series

_OF_A_LAUNCH = frozenset({"--plan", "--dry-run", "--wait", "--follow", "--json"})
Arms = tuple[series.CheckArm, series.CheckArm]
Pair = tuple[Revision, Revision]


class CheckRequest(NamedTuple):
    """What is asked besides A and B. runs: of each; None: as usual. options: the flags to repeat in a command that
    continues it. which: halve what differs, if B is worse. yes: without asking."""

    question: Question
    runs: int | None
    resume: str | None
    options: list[str]
    which: bool = False
    yes: bool = False


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


class AskedArms(NamedTuple):
    """Both arms before their runs are made. words: that name them behind `check`, to repeat. what: each has of its own
    beside the other; None: two launches. trees: of revisions, which are checked out when they are needed. again: the
    command that continues what these are a part of."""

    launches: series.Launches
    words: list[str]
    what: tuple[str, str] | None = None
    revisions: Pair | None = None
    trees: Worktrees | None = None
    again: str = ""


def of_launches(words: Sequence[Sequence[str]]) -> AskedArms:
    """Two launches. words: of each, program name first."""
    launches = launches_of(words)
    return AskedArms(launches, [words_of(each) for each in launches.values()])


@contextmanager
def under_treatment(treatment: Treatment, base: series.ArmLaunch, pair: Pair | None, name: str) -> Iterator[AskedArms]:
    """One launch under two environments; of a pair of revisions their worktrees are there meanwhile. name: of the
    series. Raises RequestError: the launch cannot have them. WorkError: a worktree cannot be made."""
    words = [*treatment.flags, words_of(base)]
    if pair is None:
        yield AskedArms(treatment.launches(base), words, (treatment.a.what, treatment.b.what))
        return
    with worktrees(name, repository_of(Path.cwd())) as trees:
        arms = [
            environment._replace(folder=str(trees.start_in(revision)), what=_with_revision(revision, environment))
            for environment, revision in zip((treatment.a, treatment.b), pair, strict=True)
        ]
        both = treatment._replace(a=arms[0], b=arms[1])
        yield AskedArms(both.launches(base), words, (arms[0].what, arms[1].what), pair, trees)


def _with_revision(revision: Revision, environment: ArmEnvironment) -> str:
    return str(revision) if environment.what == AS_IT_IS else f"{revision}, {environment.what}"


def pair_of(revisions: tuple[str, str], base: series.ArmLaunch) -> Pair:
    """The commits. Raises RequestError: one is not there, or the launch would be the same in both."""
    repository = repository_of(Path.cwd())
    require_relative(base, repository)
    a, b = (revision_of(repository, text) for text in revisions)
    _say_uncommitted(repository)
    return a, b


def make_arms(asked: AskedArms, name: str, request: CheckRequest) -> Arms:
    """The runs of both arms. Raises WorkError: fewer than two runs of an arm are left."""
    each = request.runs or USUAL_RUNS
    tasks = checked_tasks(asked.launches, each)
    if asked.what:
        print(f"A: {asked.what[0]}\nB: {asked.what[1]}", file=sys.stderr)
    announce(name, tasks, each)
    again = asked.again or continuing(asked, each, request, name)
    outcome = made(name, tasks, again) if asked.trees is None else _made_in_worktrees(asked, name, tasks, again)
    arms = arms_of([words_of(launch) for launch in asked.launches.values()], outcome, again)
    if asked.what is None:
        return arms
    commits = [revision.commit for revision in asked.revisions] if asked.revisions else [None, None]
    a, b = (arm._replace(treatment=what, commit=c) for arm, what, c in zip(arms, asked.what, commits, strict=True))
    return a, b


def series_of(request: CheckRequest, part: str = "") -> str:
    """The name of its series: of the one that it continues, else a new one. part: of that name, which has runs. Raises
    RequestError: there is no such."""
    if request.resume is None:
        return series.new_series()
    known_series(f"{request.resume}.{part}" if part else request.resume)
    return request.resume


def continuing(asked: AskedArms, each: int, request: CheckRequest, name: str) -> str:
    """The command that continues the series with so many runs of each."""
    return f"{COMMAND} check {shlex.join([*asked.words, '--runs', str(each), *request.options, '--resume', name])}"


def arms_of(words: Sequence[str], outcome: SeriesOutcome, again: str) -> Arms:
    """Both arms with their completed runs. words: of each launch. Raises WorkError: fewer than two of an arm."""
    try:
        return series.arms_made(words, outcome)
    except series.ArmFailed as failed:
        raise series.ArmFailed(f"{failed}; continue with: {again}", failed.arms) from None


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
    if to_make and len({task.point.site.nodelist for task in tasks}) > 1:
        lines.append("the allocation holds the nodes of A and of B for all runs: twice that")
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


def _say_uncommitted(repository: Repository) -> None:
    if count := uncommitted(repository):
        files = how_many(count, "file")
        print(f"not measured: changes of {files} since the last commit in {repository.top}", file=sys.stderr)


def _made_in_worktrees(asked: AskedArms, name: str, tasks: list[SeriesTask], again: str) -> SeriesOutcome:
    """The runs of both revisions, of which only those that miss runs are checked out.
    Raises WorkError: one cannot be checked out, its runs fail, or they executed other code."""
    trees, pair = asked.trees, asked.revisions
    assert trees is not None and pair is not None
    of_arm = dict(zip(series.ARMS, pair, strict=True))
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
    return outcome


def _runs(outcome: SeriesOutcome, arm: str) -> list[Run]:
    return [place.run for place in outcome.places if place.task.point.slot.key == arm and place.run is not None]
