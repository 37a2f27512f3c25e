"""The runs of a check that makes its own: which are there, which are made now, and in which order. Prints nothing.

A run says in its record of which check it is (`Part`), so nothing else need be kept: a check that was interrupted finds
its runs again, waits for one that still runs, and makes the others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.common.errors import RequestError, nearest
from harness.common.paths import PROGRAM
from harness.experiment.exercises import Training
from harness.launch.job import Job
from harness.launch.submit import Prepared, state_of
from harness.run import FINAL, Part, Run, State, all_runs, part_of
from harness.study.check.order import Point, Slot, slots
from harness.study.start import start_run

MOST_FAILED = 2  # of a side before any of it completed: the next would fail, too


class Request(NamedTuple):
    """One side as a launch. words: as typed behind `slurm.sh`."""

    words: list[str]
    prepared: Prepared


class Made(NamedTuple):
    """A run of a check that has ended. number: its place in the order, from 0. kept: it was there before."""

    slot: Slot
    number: int
    run: Run
    state: State
    kept: bool


def refuse_unlike(requests: Mapping[Point, Request]) -> None:
    """Raises RequestError: runs of these two could not be judged, whatever they took. It is said before any is made."""
    a, b = (_sort(request.prepared.job) for request in requests.values())
    for name, of_a in a.items():
        if of_a != b[name]:
            raise RequestError(
                f"check: A has {name} {of_a} and B {b[name]}: make them the same, or look "
                f"at two runs with {PROGRAM} compare"
            )
    if not all(isinstance(request.prepared.asked, Training) for request in requests.values()):
        raise RequestError("check: only trainings have steps: use -e 1, -e 2 or -e 3")


def _sort(job: Job) -> dict[str, str]:
    asked = job.experiment
    return {
        "exercise": str(asked.exercise),
        "ranks": str(asked.world_size),
        "profiler": job.profiler,
        "site": job.site.name,
        "model": job.model.name if job.model else "none",
    }


Wait = Callable[[Run], State]
MakeRuns = Callable[[Sequence[tuple[Slot, Request]], str], Iterator[tuple[Slot, Run, State]]]
"""Runs in an order, of a series; each is given when it has ended."""


class Series(NamedTuple):
    """A check's own name, and the runs that it has: (side, repeat) → the newest."""

    name: str
    there: Mapping[tuple[str, int], Run]


def new_series() -> Series:
    """A check that has no runs yet, with a name as no other has it."""
    return Series(time.strftime("check-%Y%m%d-%H%M%S-") + secrets.token_hex(2), {})


def one_after_the_other(wait: Wait) -> MakeRuns:
    """Each run as a job of its own, started when the one before it has ended."""

    def make(wanted: Sequence[tuple[Slot, Request]], series: str) -> Iterator[tuple[Slot, Run, State]]:
        for slot, request in wanted:
            part = Part(series=series, point=slot.point, repeat=slot.repeat)
            run = start_run(request.prepared, ["slurm.sh", *request.words], part)
            yield slot, run, wait(run)

    return make


def existing(series: str, requests: Mapping[Point, Request]) -> Series:
    """A series that was begun, with its runs.

    Raises:
        RequestError: there is no such series, or its runs are of other requests.
    """
    found: dict[tuple[str, int], Run] = {}
    names: dict[str, None] = {}
    for run in all_runs():
        part = part_of(run)
        if part is not None:
            names[part.series] = None
        if part is not None and part.series == series:
            found[part.point, part.repeat] = run
            _require_same(run, part, requests)
    if not found:
        near = nearest(series, names)
        raise RequestError(
            f"--resume {series}: there is no run of such a check"
            + (f": did you mean {near}?" if near else "")
        )
    return Series(series, found)


def _require_same(run: Run, part: Part, requests: Mapping[Point, Request]) -> None:
    request = requests.get(part.point)  # type: ignore[call-overload]  # another series has other points
    asked, site = run.record.experiment, run.record.site
    if request is None or request.prepared.asked != asked or request.prepared.job.site != site:
        raise RequestError(
            f"--resume {part.series}: {run.job_id} was made of another request or site; give A and B as they were, or "
            "leave out --resume"
        )


def make_series(
    requests: Mapping[Point, Request],
    each: int,
    series: Series,
    make: MakeRuns,
    wait: Wait,
) -> Iterator[Made]:
    """The runs of both sides, `each` of each, in order: those that are there and completed, and the others made now.

    Ends early where a run was cancelled, or a side only fails. Raises as `start_run` does.
    """
    order = slots(each)
    kept = {
        slot: run
        for slot in order
        if (run := series.there.get((slot.point, slot.repeat))) and _completes(run, wait)
    }
    for slot, run in kept.items():
        yield Made(slot, order.index(slot), run, "completed", kept=True)
    worked = {slot.point for slot in kept}
    failed: list[Point] = []
    wanted = [(slot, requests[slot.point]) for slot in order if slot not in kept]
    for slot, run, state in make(wanted, series.name):
        yield Made(slot, order.index(slot), run, state, kept=False)
        if state == "completed":
            worked.add(slot.point)
        else:
            failed.append(slot.point)
        hopeless = slot.point not in worked and failed.count(slot.point) >= MOST_FAILED
        if state == "cancelled" or hopeless:
            return


def _completes(run: Run, wait: Wait) -> bool:
    """Whether the run completed; one that still runs is waited for."""
    state = state_of(run)
    return (state if state in FINAL else wait(run)) == "completed"
