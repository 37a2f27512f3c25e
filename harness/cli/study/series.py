"""What every command that makes many runs shares: its flags, the plan, the question, the progress, the end."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from harness.cli.launch.parameters import SITE
from harness.cli.launch.untrusted import confirmed
from harness.cli.words import CommandLine, mistakes
from harness.common.display.printable import printable
from harness.common.display.text import how_many
from harness.common.errors import RequestError
from harness.common.paths import COMMAND
from harness.common.system.secrets import masked_words
from harness.launch.before.check import require_training
from harness.launch.before.from_shell import what_the_shell_brings
from harness.study.series.cost import making
from harness.study.series.points import SeriesTask, TaskStatus, counts
from harness.study.series.runner import ANOTHER_NAME, SeriesOutcome, SeriesProgress, carry_out, survey, to_make

NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="name of the series (default: from the request)")
]
StartOption = Annotated[bool, typer.Option("--yes", help="start without asking")]
RetryOption = Annotated[bool, typer.Option("--retry-failed", help="make the failed runs again; they are kept")]
PlanOnlyOption = Annotated[bool, typer.Option("--dry-run", help="print the plan and each run's command, start nothing")]
MOST_REPEATS = 1000


class Arguments(NamedTuple):
    """A command line, read: the command's own flags, and those of a launch by their last spelling."""

    launch: dict[str, Any]
    script: tuple[str, ...] | None  # the words of the user's own training
    site: str | None
    name: str | None
    repeats: int | None
    yes: bool
    retry_failed: bool
    dry_run: bool
    json: bool


def arguments_of(line: CommandLine, command: str, **own: Any) -> Arguments:
    """own: the command's flags. Raises RequestError: a flag is unknown or lacks its value, or a word is too many."""
    where = f"{COMMAND} help {command}"
    errors = [*mistakes(line, line.flags, where)]
    errors += [f"unexpected word {printable(' '.join(line.words))!r} ({where})"] * bool(line.words)
    if errors:
        raise RequestError("\n".join(f"{command}: {error}" for error in errors))
    given = dict(line.given)
    return Arguments(site=given.pop(SITE, None), launch=given, script=line.script, **own)


class SeriesPlan(NamedTuple):
    series: str
    tasks: Sequence[SeriesTask]
    places: Sequence[TaskStatus]
    retry_failed: bool
    to_make: list[SeriesTask]


def plan_of(series: str, tasks: Sequence[SeriesTask], *, retry_failed: bool, advice: str = ANOTHER_NAME) -> SeriesPlan:
    """The present state of the series. Raises RequestError: it was made with other settings; with the advice."""
    places, _ = survey(series, tasks, advice)
    return SeriesPlan(series, tasks, places, retry_failed, to_make(places, retry_failed))


def count_text(counts: dict[str, int]) -> str:
    """`3 done · 1 running · 8 to do`."""
    return " · ".join(f"{number} {name}" for name, number in counts.items() if number or name == "done")


def plan_lines(plan: SeriesPlan) -> Iterator[str]:
    """The runs that exist, the runs to make, their cost, and what the shell brings to them."""
    yield f"  {len(plan.tasks)} runs: {count_text(counts(plan.places))}"
    if plan.to_make:
        yield f"  to make: {making(plan.to_make)}"
    jobs = (task.prepared.job for task in plan.to_make)
    yield from (f"  {line}" for line in what_the_shell_brings(os.environ, *jobs))


def command_lines(to_make: Sequence[SeriesTask]) -> Iterator[str]:
    """Each point of which runs are to be made, with the command of one, to paste, and how many there are."""
    runs = Counter(task.point.key for task in to_make)
    width = max(map(len, runs), default=0)
    for point in {task.point.key: task.point for task in to_make}.values():
        command = f"{COMMAND} {shlex.join(masked_words(point.command)[1:])}"
        yield f"{point.key:<{width}}  {command}" + f"   # {runs[point.key]} runs" * (runs[point.key] > 1)


def carried_out(
    plan: SeriesPlan,
    arguments: Arguments,
    again: str,
    allowed: Callable[[], bool] = lambda: True,
    begin: Callable[[], None] = lambda: None,
) -> SeriesOutcome | None:
    """Make what is not done; None if a person said no. allowed: asked before. begin: called before the first run."""
    to_make = plan.to_make
    if not to_make and all(place.status != "running" for place in plan.places):
        return SeriesOutcome(list(plan.places))
    what = f"start {how_many(len(to_make), 'run')}"
    if to_make and not (allowed() and confirmed(what, arguments.yes, "started")):
        return None
    if to_make:
        require_training(to_make[0].prepared.job, os.environ)
    begin()
    try:
        return carry_out(plan.series, plan.tasks, _tell, retry_failed=plan.retry_failed)
    except KeyboardInterrupt:
        print(f"\ninterrupted: completed runs are kept; continue with: {again}", file=sys.stderr)
        raise


def _tell(change: SeriesProgress) -> None:
    run = f": {change.run.job_id}" if change.run is not None else ""
    note = f": {change.note}" if change.note else ""
    print(f"[{count_text(change.counts)}] {change.what}: {change.slot}{run}{note}", file=sys.stderr, flush=True)


def closing_lines(outcome: SeriesOutcome, again: str) -> Iterator[str]:
    """The failed runs and the command that repeats them; nothing if all is done."""
    for place in outcome.failed:
        run = f" ({place.state}): {COMMAND} logs {place.run.job_id}" if place.run is not None else " was refused"
        yield f"failed: {place.task.point.slot}{run}"
    if outcome.stopped:
        yield outcome.stopped
    if outcome.failed:
        yield f"repeat the failed runs: {again} --retry-failed"


def state_rows(places: Sequence[TaskStatus]) -> list[dict[str, Any]]:
    return [
        {"point": place.task.point.key, "repeat": place.task.point.repeat, "stands": place.status}
        | {"run": place.run.job_id if place.run is not None else None, "state": place.state}
        | {"kept": [each.run.job_id for each in place.kept], "devices": place.task.devices}
        | {"command": masked_words(place.task.point.command)}
        for place in places
    ]


def close(outcome: SeriesOutcome, again: str, before: Sequence[str], after: Sequence[str] = ()) -> int:
    """Say what failed and how many runs are done, with what a command says before and after; returns the exit code."""
    lines = [*before, *closing_lines(outcome, again), *after, count_text(counts(outcome.places))]
    print("\n".join(lines), file=sys.stderr)
    return 0 if outcome.complete else 1
