"""`check --rev A B` and `check --bisect`: a training of the user's own in revisions of their repository."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from harness.cli.study.check_runs import (
    USUAL_RUNS,
    Arms,
    CheckRequest,
    announce,
    arms_of,
    checked_tasks,
    launch,
    made,
    words_of,
)
from harness.common.errors import HarnessError, WorkError
from harness.common.format import percent, takes
from harness.common.paths import PROGRAM
from harness.common.printable import printable
from harness.common.secrets import masked_words
from harness.run import Run
from harness.study.check import series
from harness.study.check.bisect import USUAL_MOST, Bisected, Step, bisect_of, series_name
from harness.study.check.repository import Repository, Revision, repository_of, revision_of, uncommitted
from harness.study.check.result import Checked, check_arms
from harness.study.check.worktrees import Worktrees, build_words, in_folder, require_relative, worktrees
from harness.study.series.points import Task
from harness.study.series.runner import SeriesOutcome

Pair = tuple[Revision, Revision]


class RevisionArms(NamedTuple):
    """The revisions, checked; the name of their series, and what it was made of."""

    checked: Checked
    series: str
    launches: series.Launches


def check_revisions(names: tuple[str, str], words: Sequence[str], asked: CheckRequest) -> RevisionArms:
    """The training in both revisions, judged. words: of the command that starts it.
    Raises RequestError: a revision is not there. WorkError: one cannot be built, or its runs fail."""
    base = launch(words)
    repository = repository_of(Path.cwd())
    require_relative(base, repository, "--rev")
    build = build_words(asked.build)
    a, b = (revision_of(repository, text, "--rev") for text in names)
    _say_uncommitted(repository)
    name = series.known_series(asked.resume) if asked.resume else series.new_series()
    each = asked.runs or USUAL_RUNS
    with worktrees(name, repository, build) as trees:
        launches = _launches(base, trees, (a, b))
        tasks = checked_tasks(launches, each)
        print(f"A: {a}\nB: {b}", file=sys.stderr)
        announce(name, tasks, each)
        again = ["--rev", a.short, b.short, words_of(base), "--runs", str(each), *asked.options, "--resume", name]
        arms = _measured(trees, (a, b), name, tasks, shlex.join([PROGRAM, "check", *again]))
    checked = check_arms(*arms, asked.question)
    of_a, of_b = (
        arm.model_copy(update={"commit": revision.commit, "revision": str(revision)})
        for arm, revision in ((checked.a, a), (checked.b, b))
    )
    why = f"{b} against {a}: {checked.why}"
    return RevisionArms(checked.model_copy(update={"a": of_a, "b": of_b, "why": why}), name, launches)


def _launches(base: series.Launch, trees: Worktrees, revisions: Pair) -> series.Launches:
    return {arm: in_folder(base, trees.start_in(each)) for arm, each in zip(series.ARMS, revisions, strict=True)}


def _say_uncommitted(repository: Repository) -> None:
    if count := uncommitted(repository):
        files = "1 file differs" if count == 1 else f"{count} files differ"
        print(f"not measured: {files} from the last commit in {repository.top}", file=sys.stderr)


def _measured(trees: Worktrees, revisions: Pair, name: str, tasks: list[Task], again: str) -> Arms:
    """The runs of both revisions, of which only those that miss runs are built.
    Raises WorkError: one cannot be built, its runs fail, or they executed other code."""
    of_arm = dict(zip(series.ARMS, revisions, strict=True))
    for arm in dict.fromkeys(task.point.key for task in series.missing(name, tasks)):
        if not trees.is_there(of_arm[arm]):
            print(f"{arm.upper()}: checking out{' and building' * bool(trees.build)} {of_arm[arm]}", file=sys.stderr)
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


def bisect_step(words: Sequence[str], asked: CheckRequest) -> Bisected:
    """The commit that `git bisect run` checked out, judged. Raises HarnessError: no commit can be judged."""
    base = launch(words)
    repository = repository_of(Path.cwd())
    require_relative(base, repository, "--bisect")
    build = build_words(asked.build)
    bisect = bisect_of(repository)
    name = series_name(bisect, base, build, repository.inside)
    with worktrees(name, repository, build) as trees:

        def measure(part: str, revisions: Pair, each: int) -> Arms:
            tasks = checked_tasks(_launches(base, trees, revisions), each)
            if series.missing(part, tasks):
                print(f"{part}: A {revisions[0]}, B {revisions[1]}, {each} runs of each", file=sys.stderr)
            return _measured(trees, revisions, part, tasks, "git bisect run …")

        return Step(bisect, name, measure, asked.question, asked.runs or USUAL_MOST).judged()


def bisect_lines(told: Bisected, width: int) -> Iterator[str]:
    """The verdict and its reason first, then what it rests on."""
    yield from wrap(f"{told.verdict}: {printable(f'{told.commit}: {told.why}')}", width)
    details = []
    if told.size is not None and told.size_runs is not None:
        size = takes(told.size) if told.metric and "_ns" in told.metric else f"× {told.size:.3f}"
        details.append(f"looked for: {told.bad}: {size}, by {told.size_runs} runs of each end")
        details.append(f"runs differ by {percent(told.run_deviation)}")
    if told.runs is not None:
        details.append(f"{told.runs[0]} runs of good and {told.runs[1]} of this commit")
        details.append(f"repeats are chosen so that {percent(told.wrong_step)} of such answers are wrong")
    if told.disturbed_runs:
        details.append(f"other programs used the machine during {told.disturbed_runs} of these runs")
    for line in details:
        yield from wrap(printable(line), width, initial_indent="  ", subsequent_indent="    ")
