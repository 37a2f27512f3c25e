"""A series of step times, made ready for the search of jumps: without warm-up and without what repeats in a period."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]
WARM_UP = 30  # steps at the start: if they are slow, that is no change of pace
_FACTOR = 1.3  # of the steps after it
_RANKS = 64  # of many ranks, those whose median is the job's step
_ASIDE = 2  # steps on each side
_LONGEST_PERIOD = 32  # steps
_PERIODIC = 0.25  # of the absolute deviations, that a period must explain


def job_step(steps: F64) -> F64:
    """The job's step: the median over ranks; of many ranks, over some that are spread evenly."""
    some = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _RANKS)).astype(int))]
    if not np.isnan(some).any():
        return np.asarray(np.median(some, axis=0))
    job = np.full(some.shape[1], np.nan)
    there = ~np.isnan(some).all(axis=0)
    job[there] = np.nanmedian(some[:, there], axis=0)
    return job


def warm_up(job: F64) -> int:
    """How many leading steps are warm-up: each much longer than the median of the next ones."""
    n = 0
    while n < WARM_UP and job[n] > _FACTOR * np.median(job[n + 1 : n + 1 + 2 * WARM_UP]):
        n += 1
    return n


def without_period(y: F64, number: Ints) -> tuple[F64, int]:
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


def _pattern(rest: F64, number: Ints, period: int) -> F64:
    turns = [rest[number % period == turn] for turn in range(period)]
    return np.array([np.median(each) if len(each) else 0.0 for each in turns])


def in_turns(values: F64, turn: int) -> F64:
    """Means of `turn` neighbours along the last axis: with two levels in turn, a median of steps is either."""
    whole = values.shape[-1] // turn * turn
    return np.asarray(values[..., :whole].reshape(*values.shape[:-1], -1, turn).mean(axis=-1))


def floor(y: F64) -> F64:
    """The least of each step and its two neighbours on both sides.

    Where other programs use the machine, they make some steps longer and none shorter: the least of a few varies less.
    """
    padded = np.pad(y, _ASIDE, mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * _ASIDE + 1).min(axis=1))
