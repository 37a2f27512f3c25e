"""A run's step time from its stored files, without measuring: from its summary, else by the training's own clock.

Parses only the few fields that it needs, so that a list of hundreds of runs is fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import msgspec

from harness.common.bounded_read import read_bounded
from harness.run import Run, read_json_lines


class _Duration(msgspec.Struct):
    median_ns: float


class _Steps(msgspec.Struct):
    duration: _Duration | None = None


class _Rank(msgspec.Struct):
    median_step_ns: float | None = None


class _Summary(msgspec.Struct):
    steps: _Steps | None = None
    training: list[_Rank] = []


class StepTime(NamedTuple):
    """A median. `traced`: measured from the trace; else by the training's own clock."""

    ns: float
    traced: bool


_decoder = msgspec.json.Decoder(_Summary)


def step_time(run: Run) -> StepTime | None:
    """The run's step time; None where no file has it."""
    return _of_summary(run) or _of_metrics(run)


def _of_summary(run: Run) -> StepTime | None:
    try:
        found = _decoder.decode(read_bounded(run.summary))
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    if found.steps and found.steps.duration:
        return StepTime(found.steps.duration.median_ns, traced=True)
    return _slowest(rank.median_step_ns for rank in found.training)


def _of_metrics(run: Run) -> StepTime | None:
    """Of the first rank only: a run without a summary may have hundreds of ranks."""
    for path in run.metrics()[:1]:
        try:
            steps = [line for line in read_json_lines(path) if line.get("event") == "step"]
        except (OSError, ValueError):
            continue
        counted = [line for line in steps if line.get("phase") == "active"] or steps
        times = [line["step_ns"] for line in counted if isinstance(line.get("step_ns"), int)]
        return _slowest([median(times)] if times else [])
    return None


def _slowest(times: Iterable[float | None]) -> StepTime | None:
    known = [ns for ns in times if ns]
    return StepTime(max(known), traced=False) if known else None
