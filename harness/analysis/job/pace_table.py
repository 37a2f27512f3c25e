"""The ranks' steps as tables, a line per rank and a column per step: durations, own work, begins and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.part import RankPart
from harness.analysis.summary import Clock
from harness.traces.trace import F64, I64

MOST_STEPS = 400  # compared; of more these many, evenly spaced


@dataclass(frozen=True)
class PaceTable:
    """r ranks by s steps. Unknown is NaN. begin_ns, end_ns: since the earliest start of any rank; rank (r,): -1 where
    not known; stage (r,): ranks with the same number do the same work."""

    steps: I64
    step_ns: F64
    own_ns: F64
    begin_ns: F64
    end_ns: F64
    rank: I64
    stage: I64
    node: list[str | None]


def pace_table(parts: Sequence[RankPart], clocks: Mapping[str, Clock]) -> PaceTable | None:
    """None: fewer than two ranks have steps of one kind, or they have none in common."""
    sources = {part.steps.source for part in parts if part.steps.durations_ns}
    known = [part for part in parts if _is_whole(part)]
    if len(known) < 2 or len(sources) != 1:
        return None
    steps = _common([part.steps.numbers for part in known])
    if not len(steps):
        return None
    begins = _aligned_begins(known, clocks)
    lines = [_line(part, begin, steps) for part, begin in zip(known, begins, strict=True)]
    step, own, begin = np.moveaxis(np.stack(lines), 1, 0)
    return PaceTable(
        steps=steps,
        step_ns=step,
        own_ns=own,
        begin_ns=begin,
        end_ns=begin + step,
        rank=np.array([-1 if part.source.rank is None else part.source.rank for part in known], np.int64),
        stage=_stages(known),
        node=[part.source.host for part in known],
    )


def _is_whole(part: RankPart) -> bool:
    """Whether every step has its number and its begin, as a file that was changed may not."""
    steps = part.steps
    return 0 < len(steps.durations_ns) == len(steps.numbers) == len(steps.begins_ns)


def _common(numbers: Sequence[Sequence[int]]) -> I64:
    """The numbers of the steps that at least half of the ranks counted, in order, at most MOST_STEPS."""
    found, counts = np.unique(
        np.concatenate([np.array(own, np.int64) for own in numbers]), return_counts=True
    )
    steps = found[2 * counts >= len(numbers)]
    if len(steps) > MOST_STEPS:
        steps = steps[np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(np.int64)]
    return steps


def _line(part: RankPart, begin_ns: float, steps: I64) -> F64:
    """(3, s): durations, own work, begins of one rank."""
    own = part.steps
    line = np.full((3, len(steps)), np.nan)
    numbers = np.array(own.numbers, np.int64)
    order = np.argsort(numbers, kind="stable")
    place = np.searchsorted(numbers[order], steps).clip(max=len(numbers) - 1)
    row = order[place]
    seen = numbers[row] == steps
    line[0, seen] = np.array(own.durations_ns, np.float64)[row[seen]]
    if len(own.own_ns) == len(numbers):
        line[1, seen] = np.array(own.own_ns, np.float64)[row[seen]]
    line[2, seen] = begin_ns + np.array(own.begins_ns, np.float64)[row[seen]]
    return line


def _aligned_begins(parts: Sequence[RankPart], clocks: Mapping[str, Clock]) -> list[float]:
    """When each rank's window begins on the first rank's clock, since the earliest; NaN where its clock is not known.
    Differences of integers: unix nanoseconds do not fit into a float."""
    begins = [
        part.window_start_ns + (part.epoch_ns or 0) - clocks[part.clock].offset_ns
        if part.clock in clocks
        else None
        for part in parts
    ]
    first = min((begin for begin in begins if begin is not None), default=0)
    return [np.nan if begin is None else float(begin - first) for begin in begins]


def _stages(parts: Sequence[RankPart]) -> I64:
    """A number for each set of pipeline stages that ranks have."""
    stages = [tuple(part.stage.stages) if part.stage is not None else () for part in parts]
    order = {stage: i for i, stage in enumerate(sorted(set(stages)))}
    return np.array([order[stage] for stage in stages], np.int64)


def middle(values: F64) -> F64:
    """(s,) of (n, s): the middle of each column; of an even number the smaller of the two, so that of two the faster
    is the measure of the slower. NaN is left out."""
    count = (~np.isnan(values)).sum(axis=0)
    at = np.maximum((count - 1) // 2, 0)
    found: F64 = np.take_along_axis(np.sort(values, axis=0), at[None], axis=0)[0]
    return found


def behind(values: F64, alike: NDArray[np.int64]) -> F64:
    """(n, s): by how much each line is above the middle of those that do the same work, as a share of it."""
    found = np.full(values.shape, np.nan)
    for group in np.unique(alike):
        rows = alike == group
        usual = middle(values[rows])
        found[rows] = values[rows] / np.where(usual > 0, usual, np.nan) - 1
    return found


def largest(values: F64, of: NDArray[np.int64], count: int) -> F64:
    """(count, s) of (n, s): the largest of the lines of each group; NaN where none is known."""
    found = np.full((count, values.shape[1]), -np.inf)
    np.maximum.at(found, of, np.where(np.isnan(values), -np.inf, values))
    return np.where(np.isinf(found), np.nan, found)
