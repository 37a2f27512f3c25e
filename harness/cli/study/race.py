"""`slurm.sh lesson race`: a slow script to repair, the target on this machine, and what an attempt has reached."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated, NamedTuple

import typer

from harness.cli.options import JsonOption, named_sites
from harness.cli.study.check import CANNOT_TELL, lines_of
from harness.cli.study.check_runs import announce, arms_of, check_plan, checked_tasks, launch, made
from harness.cli.study.lesson import wants_runs
from harness.cli.study.series import StartOption
from harness.cli.terminal import columns
from harness.cli.words import RUN
from harness.common.display.format import duration, percent
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM, ROOT, expanded, shown_file
from harness.compare.comparison import MOST_RUNS, USUAL_RUNS
from harness.compare.verdict import ChangeVerdict
from harness.explain.answer import verdict
from harness.launch.backends.registry import backend_of
from harness.report.tables.table import WIDTH, table
from harness.site.detection import choose_site, runs_on_cpu
from harness.study import race as races
from harness.study.check.result import Checked, Question, check_arms
from harness.study.check.series import ARMS, Launches
from harness.study.series.points import SeriesTask
from harness.study.series.runner import SeriesOutcome
from harness.study.series.runs import MeasuredRun, measured

COPY = "my_race.py"
TARGET_SHARE = 0.15  # a step so much longer reaches the target: four runs of each tell no less on two cores
_REACHED = {
    ChangeVerdict.WORSE: "the target is not reached",
    ChangeVerdict.SAME: "the target is reached",
    ChangeVerdict.BETTER: "the target is beaten",
}


def race(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="your copy of race.py; default: the task and its target")
    ] = None,
    *,
    runs: Annotated[
        int, typer.Option(metavar="N", min=2, max=MOST_RUNS, help="runs of your file and of the target")
    ] = USUAL_RUNS,
    gpus: Annotated[int | None, typer.Option("-g", metavar="N", min=1, help="ranks per node [on CPUs 2]")] = None,
    site: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", autocompletion=named_sites, help="where to run, as for a launch")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="measure the same file once more, from the start")] = False,
    yes: StartOption = False,
    as_json: JsonOption = False,
) -> int:
    """Repair a slow training until it is as fast as the target, which is measured on your machine. With your copy of
    race.py: its time, whether it is the same training, and what still costs."""
    start = shown_file(str(races.START.relative_to(ROOT)))
    if file is not None and not (file.endswith(".py") and expanded(file).is_file()):
        raise RequestError(f"race: {file} is not a Python file here: make a copy first: cp {start} {COPY}")
    here = choose_site(site).site
    named = ["--site", site] if site else []
    words = [RUN, *(["-g", str(gpus or 2)] if gpus or runs_on_cpu(here) else []), *named]
    files = races.SOLVED, expanded(file).resolve() if file else races.START
    launches = {
        arm: launch([PROGRAM, *words, *races.FLAGS, "--", str(each)]) for arm, each in zip(ARMS, files, strict=True)
    }
    typed = f"{COMMAND} lesson race {shlex.join([file or COPY, *(['-g', str(gpus)] if gpus else []), *named])}"
    tasks = checked_tasks(launches, runs if file else 1)
    try:
        attempt = _made(launches, tasks, yes, typed, again)
        checked = (
            check_arms(*arms_of(("the target", file), attempt.outcome, typed), Question(TARGET_SHARE, races.METRIC))
            if file and not attempt.wrong
            else None
        )
    except WorkError as error:
        error.exit_code = CANNOT_TELL  # 1 says that it is another training
        raise
    rungs = [] if attempt.wrong else races.ladder(here.name, tasks[0].devices)
    if as_json:
        print(_json(attempt, checked, rungs))
    elif attempt.wrong:
        print("\n".join(["It is another training, so its time is not compared:", *attempt.wrong]))
    else:
        said = _verdict(attempt, checked, typed) if checked else _task(attempt, start, typed)
        print("\n".join([*said, "", *_ladder(rungs)]))
    return 1 if attempt.wrong else CANNOT_TELL if checked and checked.verdict not in _REACHED else 0


class Attempt(NamedTuple):
    """The completed runs of the file and of the target, and in what the file is another training."""

    outcome: SeriesOutcome
    file: str
    own: list[MeasuredRun]
    target: list[MeasuredRun]
    wrong: list[str]


def _made(launches: Launches, tasks: list[SeriesTask], yes: bool, typed: str, again: bool) -> Attempt:
    """The runs of both. Of runs on this machine the first pair tells whether the file is another training.
    Raises RequestError: a person does not want them. WorkError: the file fails."""
    name = races.series_of(launches, again)
    site = tasks[0].point.site
    file = races.file_of(launches["b"].experiment).name
    to_make = check_plan(name, tasks).to_make
    if to_make:
        announce(name, tasks, len(tasks) // len(ARMS))
        if not wants_runs(yes or None, False, site):
            raise RequestError(f"race: nothing was started: add --yes to start what is missing at {site.name}")
    first = tasks[: len(ARMS)] if to_make and backend_of(site).RUNS_HERE else tasks
    for some in (first, tasks):
        outcome = made(name, some, typed)
        target, own = ([each for each in measured(outcome.completed)[0] if each.slot.key == arm] for arm in ARMS)
        if not own or not target:
            raise WorkError(
                f"race: {file if target else 'the target'} failed: "
                + " · ".join(f"{COMMAND} logs {place.run.job_id}" for place in outcome.failed if place.run)
            )
        asked = races.trained(target[0].run, target[0].summary)
        found = [list(races.differences(file, races.trained(each.run, each.summary), asked)) for each in own]
        attempt = Attempt(outcome, file, own, target, next(filter(None, found), []))
        if attempt.wrong:
            break
    return attempt


def _json(attempt: Attempt, checked: Checked | None, rungs: Sequence[races.Rung]) -> str:
    return json.dumps(
        {
            "file": attempt.file,
            "run": attempt.own[-1].run.job_id,
            "differences": attempt.wrong,
            "costs": verdict(attempt.own[-1].summary).first,
            "check": checked and checked.model_dump(mode="json"),
            "ladder": [rung._asdict() | {"way": rung.way} for rung in rungs],
        },
        indent=1,
    )


def _task(attempt: Attempt, path: str, typed: str) -> list[str]:
    step, target = (duration(each[0].metrics.get(races.METRIC)) for each in (attempt.own, attempt.target))
    task = (
        f"{path} takes {step} a step on this machine, and a good repair of it {target}, which is the target. Repair a "
        "copy. It has to train the same: model, samples, steps and losses, with all gradients all-reduced. You choose "
        "what it logs and saves, and how often."
    )
    return [
        *wrap(task, columns(WIDTH)),
        "",
        f"where its time goes: {COMMAND} report {attempt.own[-1].run.job_id}",
        f"next: cp {path} {COPY}",
        f"      {typed}",
    ]


def _verdict(attempt: Attempt, checked: Checked, typed: str) -> list[str]:
    """Whether the target is reached, what that rests on, and what still costs."""
    newest, width = attempt.own[-1], columns(WIDTH)
    costs = verdict(newest.summary)
    more = (
        f"about {checked.needed_runs} runs of each would tell: {typed} --runs {checked.needed_runs}"
        if checked.needed_runs
        else f"when the machine is quieter, measure once more: {typed} --again"
    )
    first = (
        f"{attempt.file} takes {duration(checked.b.value)} a step, and the target is {duration(checked.a.value)}: "
        f"{_REACHED.get(checked.verdict, 'it cannot be told whether the target is reached')}.",
        races.same_training(attempt.file, races.trained(newest.run, newest.summary)),
    )
    last = [*costs.first, *([f"Also: {costs.also}."] if costs.also else [])]
    return [
        *(line for said in first for line in wrap(said, width)),
        "",
        *lines_of(checked.model_copy(update={"settings_differ": []}), width, advice=False),
        *([more] if checked.verdict not in _REACHED or any(run.doubts for run in checked.b.runs) else []),
        "",
        f"What costs in {newest.run.job_id} ({COMMAND} report {newest.run.job_id}):",
        *(line for said in last for line in wrap(said, width, initial_indent="  ", subsequent_indent="    ")),
    ]


def _ladder(rungs: Sequence[races.Rung]) -> list[str]:
    rows = [
        (Path(one.file).name, duration(one.step_ns), duration(one.target_ns), percent(one.way), str(one.runs), one.run)
        for one in rungs
    ]
    return [
        "All attempts that train the same, the nearest to the target first; way: the share from race.py to the target",
        *table(("", "step", "target beside it", "way", "runs", "newest run"), rows),
    ]
