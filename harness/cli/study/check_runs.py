"""The runs that `slurm.sh check` makes itself: launches read as any launch is, made in turn, with a line for each."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from harness.cli.command_line import BEHAVIOUR, declared, read_launch
from harness.cli.launch.launch import request_of
from harness.cli.script_words import RUN
from harness.common.errors import HarnessError, RequestError, WorkError
from harness.common.paths import IN_CHECKOUT, PROGRAM
from harness.common.secrets import masked_words
from harness.launch.check import require_training
from harness.launch.exercises.base import launch_of
from harness.study.campaign.points import Task
from harness.study.campaign.runner import Change, SeriesOutcome
from harness.study.check.arms import CheckArm, measured
from harness.study.check.order import ARMS, block_of, slots
from harness.study.check.series import Launch, Launches, known_series, make_runs, new_series, tasks_of

_OWN = {name for each in BEHAVIOUR for name in each.names} - {"--site"}


def launches_of(arguments: Sequence[Sequence[str]]) -> Launches:
    """Both arms from the arguments of their launches, program name first.

    Raises:
        RequestError: a sentence for each thing that is wrong, with its arm.
    """
    if not IN_CHECKOUT:
        raise RequestError(
            "check: launching needs the checkout: run `bash slurm.sh check` there, or give runs"
        )
    return {arm: _launch(arm, each) for arm, each in zip(ARMS, arguments, strict=True)}


def _launch(arm: str, arguments: Sequence[str]) -> Launch:
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
    return Launch(argv, experiment, choice.site)


def make_arms(
    launches: Launches, each: int, resume: str | None, options: Sequence[str]
) -> tuple[tuple[CheckArm, CheckArm], str]:
    """The runs of both arms, and the name of their series.

    Raises:
        RequestError: a run cannot be made, or `resume` names no such check.
        TrainingNeeded: this machine trains, and only the training packages are missing.
        WorkError: fewer than two runs of an arm completed.
    """
    tasks = tasks_of(launches, each)
    for task in tasks[: len(ARMS)]:
        require_training(task.prepared.job, os.environ)
    series = known_series(resume) if resume else new_series()
    arguments = [shlex.join(masked_words(launch.arguments)) for launch in launches.values()]
    again = shlex.join([PROGRAM, "check", *arguments, "--runs", str(each), *options, "--resume", series])
    order = " ".join(slot.arm.upper() for slot in slots(each))
    print(f"{series}: {len(tasks)} runs, alternating {order}", file=sys.stderr)
    outcome = _made(series, tasks, again)
    arms = [_arm(arm, word, outcome) for arm, word in zip(ARMS, arguments, strict=True)]
    if few := [arm for arm, made in zip(ARMS, arms, strict=True) if len(made.runs) < 2]:
        notes = [note for arm in arms for note in arm.notes]
        which = " and ".join(few).upper()
        raise WorkError(
            "\n".join([*notes, f"{which}: fewer than two runs completed; continue with: {again}"])
        )
    return (arms[0], arms[1]), series


def _made(series: str, tasks: list[Task], again: str) -> SeriesOutcome:
    try:
        return make_runs(series, tasks, lambda change: _tell(change, len(tasks)))
    except (KeyboardInterrupt, HarnessError) as error:
        if not isinstance(error, RequestError):
            print(f"its runs are kept; continue with: {again}", file=sys.stderr)
        raise


def _tell(change: Change, of: int) -> None:
    run = f": {change.run.job_id}" if change.run else ""
    note = f" ({change.note})" if change.note else ""
    place = f"{change.slot.key.upper()}{change.slot.repeat + 1}"
    print(f"{change.counts['done']} of {of} done; {place} {change.what}{run}{note}", file=sys.stderr)


def _arm(arm: str, arguments: str, outcome: SeriesOutcome) -> CheckArm:
    made = CheckArm(arguments, [], [])
    for place in outcome.places:
        slot = place.task.point.slot
        if slot.key != arm:
            continue
        if place.status == "done" and place.run is not None:
            made.runs.append(measured(place.run.path, block=block_of(slot.repeat)))
        else:
            which = place.run.job_id if place.run else f"{arm.upper()}{slot.repeat + 1}"
            logs = f" ({PROGRAM} logs {which})" if place.run else ""
            made.notes.append(f"{which} is left out: {place.state or place.status}{logs}")
    return made
