"""Where a series of step times changes its level: the one rule for a change of pace. Knows arrays only.

At each step the medians of the SIDE steps before it and of the SIDE steps from it on are compared. A change of level is
where they differ most, if they differ by more than LEAST of the series' median and FAR spreads, and if the medians of
up to NEAR steps on both sides differ by as much. The spread is 1.4826 median absolute deviations of how far the medians
of CLOSE steps side by side are apart in the whole series: by chance, and with all that makes neighbouring steps alike.

Why FAR is 5: medians of CLOSE steps vary more than those of SIDE steps, so that 5 spreads are 7 standard deviations of
what is compared if the steps are independent, and still 5 if each has a correlation of 0.9 with the next one. Chance
exceeds these in 1 of 2,000,000 places (Rousseeuw and Croux, Alternatives to the median absolute deviation, JASA 1993,
for the spread).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]
WARM_UP = 30  # steps at the start: if they are slow, that is no change of pace
_FACTOR = 1.3  # of the steps after it
_RANKS = 64  # of many ranks, those whose median is the job's step
_LONGEST_PERIOD = 32  # steps
_PERIODIC = 0.25  # of the absolute deviations, that a period must explain
SIDE, CLOSE = 24, 12  # steps
FEWEST = 60  # steps: in fewer, a change itself is most of the spread
LEAST = 0.06  # of the series' median
FAR = 5.0  # spreads
NEAR = 200  # steps on each side of a change that say how large it is
_SD_PER_MAD = 1.4826  # of a normal distribution


def job_step(steps: F64) -> F64:
    """The job's step: the median over ranks; of many ranks, over some that are spread evenly."""
    some = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _RANKS)).astype(int))]
    if not np.isnan(some).any():
        return np.asarray(np.median(some, axis=0))
    job = np.full(some.shape[1], np.nan)
    there = ~np.isnan(some).all(axis=0)
    job[there] = np.nanmedian(some[:, there], axis=0)
    return job


def warm_up(step_times: F64) -> int:
    """How many leading steps are warm-up: each much longer than the median of the next ones."""
    n = 0
    while n < min(WARM_UP, len(step_times) - 1) and step_times[n] > _FACTOR * np.median(
        step_times[n + 1 : n + 1 + 2 * WARM_UP]
    ):
        n += 1
    return n


def without_period(y: F64, number: Ints) -> F64:
    """The series without what repeats each K-th step, as gradient accumulation makes it.

    y: durations; number: of each step. K is the shortest period that explains most of the deviations from the median
    of the steps around.
    """
    width = _LONGEST_PERIOD  # even: of two levels in turn, the median is between them
    padded = np.pad(y, (width // 2, width // 2 - 1), mode="edge")
    rest = y - np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    alone = float(np.abs(rest).mean())
    if not alone:
        return y
    explained = {}
    for period in range(2, min(_LONGEST_PERIOD, len(y) // 8) + 1):
        pattern = _pattern(rest, number, period)
        explained[period] = 1 - float(np.abs(rest - pattern[number % period]).mean()) / alone
    most = max(explained.values(), default=0.0)
    if most < _PERIODIC:
        return y
    period = next(each for each, share in explained.items() if share >= 0.9 * most)
    return y - _pattern(rest, number, period)[number % period]


def _pattern(rest: F64, number: Ints, period: int) -> F64:
    turns = [rest[number % period == turn] for turn in range(period)]
    return np.array([np.median(each) if len(each) else 0.0 for each in turns])


def spread(x: F64) -> float:
    """A standard deviation that outliers do not move: of the median absolute deviation."""
    return _SD_PER_MAD * float(np.median(np.abs(x - np.median(x)))) if len(x) else 0.0


class Level(NamedTuple):
    """A new level. at, end: its first index and the one after its last. since: the first index of the level before.
    before, after: the medians of both, each of up to NEAR steps."""

    since: int
    at: int
    end: int
    before: float
    after: float


def levels(y: F64) -> list[Level]:
    """Each change of the level of a series, in order. Empty: it is steady.

    >>> levels(np.repeat([1.0, 2.0], 40))
    [Level(since=0, at=40, end=80, before=1.0, after=2.0)]
    """
    if len(y) < FEWEST:
        return []
    least = max(LEAST * float(np.median(y)), FAR * _usual(y))
    chosen = _places(y, least)
    while True:
        ends = [0, *chosen, len(y)]
        found = [_level(y, *where) for where in zip(ends, chosen, ends[2:], strict=False)]
        kept = [level for level in found if abs(level.after - level.before) > least]
        if len(kept) == len(found):
            return found
        chosen = [level.at for level in kept]


def _usual(y: F64) -> float:
    """The spread of the differences of medians of CLOSE steps side by side."""
    medians = _medians(y, CLOSE)
    return spread(medians[CLOSE:] - medians[:-CLOSE])


def _medians(y: F64, width: int) -> F64:
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(y, width), axis=1))


def _places(y: F64, least: float) -> list[int]:
    """Where the medians of both sides differ by more than `least`, the largest difference of each neighbourhood."""
    medians = _medians(y, SIDE)
    apart = np.zeros(len(y))
    apart[SIDE : len(y) - SIDE + 1] = np.abs(medians[SIDE:] - medians[:-SIDE])
    chosen = []
    while apart[best := int(np.argmax(apart))] > least:
        at = _place(y, best)
        apart[max(min(at, best) - SIDE + 1, 0) : max(at, best) + SIDE] = 0
        chosen.append(at)
    return sorted(chosen)


def _place(y: F64, about: int) -> int:
    """The place near `about` from which the sum of absolute deviations from the medians of both sides is least."""
    near = y[about - SIDE : about + SIDE]
    before, after = np.median(near[:SIDE]), np.median(near[SIDE:])
    gain = np.cumsum(np.abs(near - after) - np.abs(near - before))
    return about - SIDE + int(np.argmax(gain)) + 1


def _level(y: F64, since: int, at: int, end: int) -> Level:
    before, after = y[max(since, at - NEAR) : at], y[at : min(end, at + NEAR)]
    return Level(since, at, end, float(np.median(before)), float(np.median(after)))
