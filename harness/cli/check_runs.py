"""The runs that `slurm.sh check` makes itself: launches read as any launch is, made in turn, with a line for each."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from harness.cli.command_line import BEHAVIOUR, declared, read_line
from harness.cli.follow import watch
from harness.cli.launch import request_of
from harness.common.errors import RequestError, WorkError
from harness.common.paths import IN_CHECKOUT, PROGRAM
from harness.format.format import metric_text
from harness.launch.check import require_training
from harness.launch.exercises.base import launch_of
from harness.launch.submit import prepare
from harness.run import Run, State
from harness.study.check.order import Point, slots
from harness.study.check.series import (
    Made,
    Request,
    existing,
    make_series,
    new_series,
    one_after_the_other,
    refuse_unlike,
)
from harness.study.check.sides import MeasuredRun, Side, measured
from harness.study.check.values import STEP, values

Requests = dict[Point, Request]
_OWN = {name for each in BEHAVIOUR for name in each.names} - {"--site"}


def requests_of(launches: Sequence[Sequence[str]]) -> Requests:
    """Both sides from the words of their launches, program name first.

    Raises:
        RequestError: a sentence for each thing that is wrong, with its side.
        TrainingNeeded: this machine trains, and only the training packages are missing.
    """
    if not IN_CHECKOUT:
        raise RequestError(
            "check: launching needs the checkout: run `bash slurm.sh check` there, or give runs"
        )
    points: tuple[Point, ...] = ("a", "b")
    found = {point: _request(point, words) for point, words in zip(points, launches, strict=True)}
    refuse_unlike(found)
    for request in found.values():
        require_training(request.prepared.job, os.environ)
    return found


def _request(point: Point, words: Sequence[str]) -> Request:
    argv = list(words[words.index(PROGRAM) + 1 :])
    line = read_line(argv, declared())
    if own := _OWN & line.given.keys():
        raise RequestError(f"{point.upper()}: {min(own)} is not for a launch inside of a check: drop it")
    try:
        experiment, choice = request_of(line)
        launch_of(experiment).refuse_ambiguous(experiment, line.given)
        return Request(argv, prepare(experiment, choice.site))
    except RequestError as error:
        sentences = str(error).splitlines()
        raise RequestError("\n".join(f"{point.upper()}: {each}" for each in sentences)) from None


def make_sides(
    requests: Requests, each: int, resume: str | None, options: Sequence[str], quiet: bool
) -> tuple[tuple[Side, Side], str]:
    """The runs of both sides, and the name of their series.

    Raises:
        RequestError: a run cannot be made, or `resume` names no such check.
        WorkError: too few of a side's runs completed, or the check was interrupted.
    """
    series = existing(resume, requests) if resume else new_series()
    again = _command(requests, each, options, series.name)
    order = " ".join(slot.point.upper() for slot in slots(each))
    print(
        f"{series.name}: {2 * each} runs in turn, {order}; should it stop, this goes on: {again}",
        file=sys.stderr,
    )
    sides = {point: Side(shlex.join(request.words), [], []) for point, request in requests.items()}
    cancelled = False
    for made in make_series(requests, each, series, one_after_the_other(_watch), _watch):
        cancelled = made.state == "cancelled"
        _take(sides[made.slot.point], made, 2 * each)
    _require_enough(sides, cancelled, again)
    return (sides["a"], sides["b"]), series.name


def _watch(run: Run) -> State:
    return watch(run, quiet=True)


def _command(requests: Requests, each: int, options: Sequence[str], series: str) -> str:
    words = [shlex.join(request.words) for request in requests.values()]
    return shlex.join([PROGRAM, "check", *words, "--runs", str(each), *options, "--resume", series])


def _take(side: Side, made: Made, of: int) -> None:
    """Measure a run and print its line; one that did not complete becomes a note."""
    place = f"{made.number + 1} of {of}, {made.slot.point.upper()}: {made.run.job_id}"
    if made.state != "completed":
        side.notes.append(f"{made.run.job_id} is left out: {made.state} ({PROGRAM} logs {made.run.job_id})")
        print(f"{place}: {made.state}", file=sys.stderr)
        return
    run = measured(made.run.path, block=made.slot.block)
    side.runs.append(run)
    print(f"{place}: {_step(run)}{' (made before)' * made.kept}", file=sys.stderr)


def _step(run: MeasuredRun) -> str:
    found = values(Side("", [run], []), STEP, ())
    return f"step {metric_text(STEP, found[0].value)}" if found else "no steps"


def _require_enough(sides: dict[Point, Side], cancelled: bool, again: str) -> None:
    few = [point.upper() for point, side in sides.items() if len(side.runs) < 2]
    failed = "\n".join(note for side in sides.values() for note in side.notes)
    if cancelled:
        raise WorkError(f"the check was stopped; its runs are kept, and this goes on: {again}")
    if few:
        which = " and ".join(few)
        raise WorkError(
            f"{failed}\n{which}: fewer than two runs completed, so nothing can be said; then: {again}"
        )
