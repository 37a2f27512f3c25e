"""Changes of pace of a whole training: from which step on its steps became slower or faster, and on which ranks.

Knows arrays of step times only. Ranks that train together wait for each other, so all their steps become slower at
once; the rank that causes it is the one whose own time, without waiting, grew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.live import onsets
from harness.live.onsets import Onset
from harness.live.own_time import culprits

F64 = NDArray[np.float64]
_FEWEST = 40  # steps, to speak of a change
_WARM_UP = 30  # steps at the start: if they are slow, that is no change of pace
_WARM_UP_FACTOR = 1.3  # of the steps after it
_RANKS = 64  # of many ranks, those whose median is the job's step
_LONGEST_PERIOD = 32  # steps
_SHORT_PERIOD = 4  # steps, of which an unusual one is not rare
_PERIODIC = 0.25  # of the absolute deviations, that a period must explain


class Change(NamedTuple):
    """One change of pace. Durations in the unit of the input.

    step: the first step of the new pace; low, high: its 95 % interval. before, after: median durations of the job's
    step; ratio: after / before. ranks: those whose own time changed; all ranks if all changed, or if nobody can be
    named (`named` is False). lasts: the last step of the new pace; None: to the end.
    """

    step: int
    low: int
    high: int
    before: float
    after: float
    ratio: float
    ranks: tuple[int, ...]
    named: bool
    lasts: int | None


def changes(steps: F64, own: F64 | None = None) -> list[Change]:
    """Each change of pace, in the order of steps.

    steps: (ranks, steps), durations; NaN where not known. own: the same without waiting for other ranks; NaN or None:
    not known. Found are changes by 8 % and more that last 15 steps and more, if the noise allows it. Slow steps that
    are few, or that come in a period, and slow steps at the start are no change.
    """
    job = _job(steps) if steps.size else np.empty(0)
    known = np.flatnonzero(job > 0)
    if len(known) < _FEWEST:
        return []
    known = known[_warm_up(job[known]) :]
    y, period = _without_period(np.log(job[known]), known)
    at = onsets.jumps(y)
    if at and at[0] < _WARM_UP and _became_faster(y, at[0]):
        known, y, at = known[at[0] :], y[at[0] :], [each - at[0] for each in at[1:]]
    ends = [0, *at, len(y)]
    series = _Series(job, known, y, own, period if period <= _SHORT_PERIOD else 1)
    return [_change(series, where, len(steps)) for where in zip(ends, at, ends[2:], strict=False)]


class _Series(NamedTuple):
    """job: durations of all steps. known: the steps that count. y: their log durations. own: of `changes`.
    turn: steps whose mean is a level, as many as a short period has."""

    job: F64
    known: NDArray[np.intp]
    y: F64
    own: F64 | None
    turn: int


def _change(series: _Series, where: tuple[int, int, int], count: int) -> Change:
    """where: the jump before, this one and the next, as indices of the steps that count. count: of ranks."""
    begin, here, end = where
    job, known, y, own, _ = series
    sides = known[max(begin, here - onsets.NEAR) : here], known[here : min(end, here + onsets.NEAR)]
    before, after = (float(np.median(_turns(job[side], series.turn))) for side in sides)
    ranks: tuple[int, ...] = ()
    if own is not None:
        own_before, own_after = (_turns(own[:, side], series.turn) for side in sides)
        ranks = culprits(own_before, own_after, after - before)
    first, likelihood = onsets.likelihoods(y, here, begin, end)
    if own is not None and ranks:
        likelihood = likelihood + _own_likelihood(own[list(ranks)], known, where, likelihood)
    onset = Onset(*(int(known[place]) for place in onsets.placed(first, likelihood)))
    lasts = None if end == len(y) else int(known[end]) - 1
    named = bool(ranks) or count == 1
    return Change(*onset, before, after, after / before, ranks or tuple(range(count)), named, lasts)


def _turns(values: F64, turn: int) -> F64:
    """Means of `turn` neighbours along the last axis: with two levels in turn, a median of steps is either."""
    whole = values.shape[-1] // turn * turn
    return np.asarray(values[..., :whole].reshape(*values.shape[:-1], -1, turn).mean(axis=-1))


def _became_faster(y: F64, at: int) -> bool:
    return bool(np.median(y[:at]) > np.median(y[at : at + onsets.NEAR]))


def _job(steps: F64) -> F64:
    """The job's step: the median over ranks; of many ranks, over some that are spread evenly."""
    some = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _RANKS)).astype(int))]
    if not np.isnan(some).any():
        return np.asarray(np.median(some, axis=0))
    job = np.full(some.shape[1], np.nan)
    there = ~np.isnan(some).all(axis=0)
    job[there] = np.nanmedian(some[:, there], axis=0)
    return job


def _warm_up(job: F64) -> int:
    """How many leading steps are warm-up: each much longer than the median of the next ones."""
    n = 0
    while n < _WARM_UP and job[n] > _WARM_UP_FACTOR * np.median(job[n + 1 : n + 1 + 2 * _WARM_UP]):
        n += 1
    return n


def _without_period(y: F64, number: NDArray[np.intp]) -> tuple[F64, int]:
    """The series without what repeats each K-th step, as gradient accumulation makes it; and K, 1 without any.

    y: log durations; number: of each step. K is the shortest period that explains most of the deviations from the
    median of the steps around.
    """
    width = _LONGEST_PERIOD  # even: of two levels in turn, the median is between them
    padded = np.pad(y, (width // 2, width // 2 - 1), mode="edge")
    rest = y - np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    alone = float(np.abs(rest).mean())
    if not alone:
        return y, 1
    explained = {}
    for period in range(2, min(_LONGEST_PERIOD, len(y) // 8) + 1):
        pattern = _pattern(rest, number, period)
        explained[period] = 1 - float(np.abs(rest - pattern[number % period]).mean()) / alone
    most = max(explained.values(), default=0.0)
    if most < _PERIODIC:
        return y, 1
    period = next(each for each, share in explained.items() if share >= 0.9 * most)
    return y - _pattern(rest, number, period)[number % period], period


def _pattern(rest: F64, number: NDArray[np.intp], period: int) -> F64:
    turns = [rest[number % period == turn] for turn in range(period)]
    return np.array([np.median(each) if len(each) else 0.0 for each in turns])


def _own_likelihood(own: F64, known: NDArray[np.intp], where: tuple[int, int, int], of_job: F64) -> F64:
    """That of the same places by the own time of the ranks that changed; zeros if it is not known in all steps."""
    mean = own[:, known].mean(axis=0)
    if not (mean > 0).all():
        return np.zeros_like(of_job)
    begin, here, end = where
    return onsets.likelihoods(np.log(mean), here, begin, end)[1]
