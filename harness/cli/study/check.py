"""`slurm.sh check`: whether B is worse than A, by several runs of each, or that it cannot be told."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Annotated

import typer

from harness.analysis.change import ChangeVerdict
from harness.cli.command_line import BEHAVIOUR, RUN, columns, declared, read_launch
from harness.cli.commands import run_command
from harness.cli.launch.launch import request_of
from harness.cli.options import JsonOption
from harness.cli.page import as_text, of_function
from harness.common.errors import HarnessError, RequestError, WorkError
from harness.common.format import metric_text, percent, takes
from harness.common.paths import IN_CHECKOUT, PROGRAM
from harness.common.secrets import masked_words
from harness.launch.check import require_training
from harness.launch.exercises.base import launch_of
from harness.launch.submit import what_the_shell_brings
from harness.report.tables.table import WIDTH, setting, table
from harness.study.check import series
from harness.study.check.result import ArmValues, Checked, Differing, Question, check_arms
from harness.study.series.cost import SeriesCost, cost_lines, making, series_cost
from harness.study.series.folder import runs_of
from harness.study.series.points import Task, observed, task_statuses
from harness.study.series.runner import Change, SeriesOutcome, to_make

USUAL_RUNS = 4  # of each arm
MOST_RUNS = 64
USUAL_SHARE = "5%"
LEAST_SHARE, MOST_SHARE = 0.001, 1.0
CANNOT_TELL = 3
EXITS = [
    ("0", "B is the same or better"),
    ("1", "B is worse"),
    ("2", "wrong request"),
    ("3", "cannot tell, not comparable, or its runs failed"),
]
EXAMPLES = [
    ("check '-e 1' '-e 1 -- --micro-batch-size 4'", "four runs of each, alternating"),
    ("check local-3,local-5 local-4,local-6", "existing runs"),
]
EXAMPLE = f"{PROGRAM} check '-e 1 -g 2' '-e 1 -g 2 -- --mixed-precision'"


def check(arguments: list[str]) -> int:
    """`slurm.sh check`. Raises WorkError with the exit code of `cannot tell`: its runs failed; 1 says B is worse."""
    try:
        return run_command("check", command, [_as_argument(word) for word in arguments])
    except WorkError as error:
        error.exit_code = CANNOT_TELL
        raise


def page(_: list[str]) -> str:
    return as_text(of_function("check", command, EXITS, EXAMPLES, "docs/studies.md"))


def _as_argument(word: str) -> str:
    if word in ("-e", "--exercise"):
        raise RequestError(f"check: {word}: put each launch into quotes, as in {EXAMPLE}")
    own = word.startswith(("--fail-above", "--metric"))
    asks = word.startswith("-") and not own and (" " in word or word.startswith("-e"))
    asks = asks or word.startswith(f"{RUN} ")
    return f"{PROGRAM} {word}" if asks else word


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="the base, given in the same way as B")],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="runs with commas, a series, or a launch in quotes, of which runs are made"),
    ],
    *,
    fail_above: Annotated[str, typer.Option(metavar="P%", help="how much worse B may be")] = USUAL_SHARE,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="the number to judge [step_time]")] = None,
    runs: Annotated[
        int | None, typer.Option(metavar="N", min=2, max=MOST_RUNS, help=f"runs of each launch [{USUAL_RUNS}]")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="SERIES", help="make only the missing runs of this check; for launches")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Whether B is slower than A, from several runs of each. If the runs differ too much, it cannot tell and prints
    the command that would."""
    from harness.report.tables.catalogue import numbers

    question = Question(_share(fail_above), metric, numbers())
    launches = [re.match(rf"(bash )?{re.escape(PROGRAM)} ", word) is not None for word in (a, b)]
    if any(launches) and not all(launches):
        raise RequestError("check: one of A and B is runs, the other a launch: give two launches, which then alternate")
    if not any(launches) and (runs or resume):
        raise RequestError(f"{'--runs' if runs else '--resume'} is for launches in quotes, as in {EXAMPLE}")
    asked = ["--fail-above", fail_above] if fail_above != USUAL_SHARE else []
    asked += ["--metric", metric] if metric is not None else []
    if all(launches):
        asked_for = launches_of([shlex.split(word) for word in (a, b)])
        arms, name = make_arms(asked_for, runs or USUAL_RUNS, resume, asked)
        asked += ["--resume", name]
        checked = check_arms(*arms, question)
        if checked.needed_runs is not None:
            cost = _cost(name, series.tasks_of(asked_for, checked.needed_runs))
            checked = checked.model_copy(update={"next_cost": making(cost) if cost.to_make else None})
    else:
        arms = series.arms_of_runs((a, b))
        checked = check_arms(*arms, question)
    checked = checked.model_copy(update={"next": _next(checked, arms, asked)})
    print(checked.model_dump_json(indent=1) if as_json else "\n".join(lines_of(checked, columns(WIDTH))))
    return checked.verdict.exit_code


def _share(text: str) -> float:
    """`5%` as 0.05. Raises RequestError: it is anything else."""
    found = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+)%", text)
    share = float(found[1]) / 100 if found else None
    if share is not None and LEAST_SHARE <= share <= MOST_SHARE:
        return share
    near = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+) ?%?", text)
    number = float(near[1]) if near else 100 * 0.05
    percentage = 100 * number if 0 < number < 1 and "%" not in text else number
    percentage = min(max(percentage, 100 * LEAST_SHARE), 100 * MOST_SHARE)
    raise RequestError(
        f"--fail-above takes a percentage from 0.1% to 100%, not {text!r}: did you mean {percentage:g}%?"
    )


def _next(checked: Checked, arms: Sequence[series.CheckArm], asked: Sequence[str]) -> str | None:
    launches = [launch for arm in arms if (launch := series.launch_of_arm(arm)) is not None]
    if checked.needed_runs is None or len(launches) < len(arms):
        return None
    return shlex.join([PROGRAM, "check", *launches, "--runs", str(checked.needed_runs), *asked])


_OWN = {name for each in BEHAVIOUR for name in each.names} - {"--site"}


def launches_of(arguments: Sequence[Sequence[str]]) -> series.Launches:
    """Both arms from the arguments of their launches, program name first."""
    if not IN_CHECKOUT:
        raise RequestError("check: launching needs the checkout: run `bash slurm.sh check` there, or give runs")
    return {arm: _launch(arm, each) for arm, each in zip(series.ARMS, arguments, strict=True)}


def _launch(arm: str, arguments: Sequence[str]) -> series.Launch:
    argv = list(arguments[arguments.index(PROGRAM) + 1 :])
    is_run = argv[:1] == [RUN]
    line = read_launch(argv[is_run:], declared(), is_run)
    if own := _OWN & line.given.keys():
        raise RequestError(f"{arm.upper()}: {min(own)} does not go with a launch inside of a check: drop it")
    try:
        experiment, choice = request_of(line)
        launch_of(experiment).refuse_ambiguous(experiment, line.given)
    except RequestError as error:
        raise RequestError("\n".join(f"{arm.upper()}: {each}" for each in str(error).splitlines())) from None
    return series.Launch(argv, experiment, choice.site)


def make_arms(
    launches: series.Launches, each: int, resume: str | None, options: Sequence[str]
) -> tuple[tuple[series.CheckArm, series.CheckArm], str]:
    """The runs of both arms, and the name of their series. Raises WorkError: fewer than two runs of an arm are left."""
    tasks = series.tasks_of(launches, each)
    jobs = [task.prepared.job for task in tasks[: len(series.ARMS)]]
    for job in jobs:
        require_training(job, os.environ)
    name = series.known_series(resume) if resume else series.new_series()
    arguments = [shlex.join(masked_words(launch.arguments)) for launch in launches.values()]
    again = shlex.join([PROGRAM, "check", *arguments, "--runs", str(each), *options, "--resume", name])
    order = " ".join(slot.key.upper() for slot in series.slots(each))
    lines = [f"{name}: {len(tasks)} runs, alternating {order}", *cost_lines(_cost(name, tasks))]
    lines += what_the_shell_brings(os.environ, *jobs)
    print("\n  ".join(lines), file=sys.stderr)
    outcome = _made(name, tasks, again)
    arms = [_arm(arm, word, outcome) for arm, word in zip(series.ARMS, arguments, strict=True)]
    if few := [arm for arm, made in zip(series.ARMS, arms, strict=True) if len(made.runs) < 2]:
        notes = [note for arm in arms for note in arm.notes]
        which = " and ".join(few).upper()
        raise WorkError("\n".join([*notes, f"{which}: fewer than two runs completed; continue with: {again}"]))
    return (arms[0], arms[1]), name


def _cost(name: str, tasks: list[Task]) -> SeriesCost:
    runs = [observed(run) for run in runs_of(name)]
    return series_cost(tasks, to_make(task_statuses(tasks, runs), retry_failed=True), runs)


def _made(name: str, tasks: list[Task], again: str) -> SeriesOutcome:
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


def _arm(arm: str, arguments: str, outcome: SeriesOutcome) -> series.CheckArm:
    made = series.CheckArm(arguments, [], [])
    for place in outcome.places:
        slot = place.task.point.slot
        if slot.key != arm:
            continue
        if place.status == "done" and place.run is not None:
            made.runs.append(series.measured(place.run.path, block=series.block_of(slot.repeat)))
        else:
            which = place.run.job_id if place.run else f"{arm.upper()}{slot.repeat + 1}"
            logs = f" ({PROGRAM} logs {which})" if place.run else ""
            made.notes.append(f"{which} is left out: {place.state or place.status}{logs}")
    return made


_MEANS = {"step_ns": "step time", "step_ns_per_token": "step time per token", "mean_step_ns": "mean step time"}


def lines_of(checked: Checked, width: int) -> Iterator[str]:
    """The verdict first, then what it rests on, then what to do."""
    yield from wrap(f"{checked.verdict.value}: {checked.why}", width)
    yield ""
    for letter, arm in (("A", checked.a), ("B", checked.b)):
        yield f"{letter}: {arm.asked}"
        yield f"   {_runs(arm)}"
        shown = ", ".join(metric_text(checked.metric, run.value) for run in arm.runs)
        yield f"   {_MEANS.get(checked.metric, checked.metric)}: {shown or 'no run has it'}"
    yield ""
    yield from _numbers(checked, width)
    yield from _differing("Not comparable: these differ", checked.key_differs)
    yield from _differing("Settings that differ", checked.asked_differently)
    notes = [f"note: {note}" for note in [*checked.notes, *_doubts(checked)]]
    yield from (line for note in notes for line in wrap(note, width, subsequent_indent="  "))
    yield from _advice(checked, width)


def _runs(arm: ArmValues) -> str:
    count = len(arm.runs)
    return f"{count} run{'s' * (count != 1)}: {', '.join(run.run for run in arm.runs)}" if count else "no run"


def _numbers(checked: Checked, width: int) -> Iterator[str]:
    if checked.ratio is None:
        return
    text = f"B / A {checked.ratio:.3f}"
    if checked.low is not None and checked.high is not None and checked.smallest_seen is not None:
        seen = "_ns" in checked.metric and not checked.low <= 1 <= checked.high
        text = f"B takes {takes(checked.ratio)}: " * seen + text
        text += (
            f", 95 % interval {checked.low:.3f} to {checked.high:.3f}: runs differ by "
            f"{percent(checked.run_deviation)}, so {len(checked.a.runs)} and {len(checked.b.runs)} runs show a change "
            f"of {percent(checked.smallest_seen)} nine times in ten"
        )
    yield from wrap(text, width)


def _differing(title: str, rows: list[Differing]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
        yield from table(("", "A", "B"), [(row.name, setting(row.a), setting(row.b)) for row in rows], left=3)
        yield ""


def _doubts(checked: Checked) -> Iterator[str]:
    for letter, arm in (("A", checked.a), ("B", checked.b)):
        disturbed = [run for run in arm.runs if run.doubts]
        if disturbed:
            names = ", ".join(run.run for run in disturbed)
            yield f"{letter}: {disturbed[0].doubts[0]} (of {names})"


def _advice(checked: Checked, width: int) -> Iterator[str]:
    if checked.verdict is not ChangeVerdict.UNKNOWN:
        return
    if checked.needed_runs is None:
        text = (
            f"even {MOST_RUNS} runs of each would not tell, if they vary like these: make the machine "
            "quieter, or allow more with --fail-above"
        )
        yield from wrap(text, width)
        return
    runs = [*checked.a.runs, *checked.b.runs]
    if 2 * sum(bool(run.doubts) for run in runs) > len(runs):
        yield from wrap("other programs used the machine during most runs: repeat the check when they do not", width)
    known = checked.low is not None
    text = (
        f"about {checked.needed_runs} runs of each would tell" if known else f"begin with {checked.needed_runs} of each"
    )
    yield text + (":" if checked.next else "")
    if checked.next:
        yield f"  {checked.next}"
    if checked.next_cost:
        yield from wrap(f"to make: {checked.next_cost}", width)
