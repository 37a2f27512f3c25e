"""The rank that the others wait for, by the ranks' times without waiting. Knows arrays only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.onsets import spread

F64 = NDArray[np.float64]
LEAST_COST = 0.03  # of the step: less waiting for the slowest rank is not worth a word
FEWEST = 20  # steps
_CLEAR = 0.05  # of the step, by which a rank is slower than the others where it is clearly the slowest
_ALWAYS, _OFTEN = 0.9, 0.3  # of the steps
_PARTS = 10  # of the steps, in each of which a rank's lead is looked at
_FAR = 3.0  # spreads of these leads, by which their median must be above zero


class Slowest(NamedTuple):
    """The rank that the others wait for.

    kind: "always" (in 90 % of the steps), "often" (30 %), "rarely", "in turns" (no rank stands out) or "never" (the
    others wait less than 3 % of a step). rank: None where no rank stands out. share: of the steps, in which it is
    clearly the slowest. costs: per step, in the input's unit: what a step would gain if the rank was only as slow as
    the next one; "in turns": how long the median rank waits for the slowest.
    """

    kind: str
    rank: int | None
    share: float
    costs: float


def slowest(own_time: F64, step: float) -> Slowest:
    """The rank that is the slowest.

    A rank stands out if more time is spent in waiting for it than for all the others: in ten equal parts of the
    steps, the median of this difference is more than 3 spreads (1.4826 median absolute deviations) above zero. A median
    of ten values varies by 0.4 of their standard deviation, so that this is 7 of its own: ranks that are alike do not
    reach it, even if the spread of ten values is half of what it should be.

    own_time: (ranks, steps), durations without waiting for other ranks, NaN where not known. step: the job's median
    step. Steps in which the own time of a rank is not known are left out.
    """
    known = own_time[:, ~np.isnan(own_time).any(axis=0)]
    ranks, count = known.shape
    if ranks < 2 or count < FEWEST or step <= 0:
        return Slowest("never", None, 0.0, 0.0)
    middle, second = (ranks - 1) // 2, ranks - 2
    ordered = np.partition(known, (middle, second), axis=0)
    first = known.argmax(axis=0)
    top = known.max(axis=0)
    waiting = top - ordered[middle]
    costs = float(waiting.mean())
    if costs < LEAST_COST * step:
        return Slowest("never", None, 0.0, costs)
    clear = waiting > _CLEAR * step
    rank = int(np.bincount(first, waiting, ranks).argmax())
    lead = np.array([part.mean() for part in np.array_split(np.where(first == rank, waiting, -waiting), _PARTS)])
    if np.median(lead) <= _FAR * spread(lead):
        return Slowest("in turns", None, 0.0, costs)
    share = float(np.count_nonzero(clear & (first == rank)) / count)
    kind = "always" if share >= _ALWAYS else "often" if share >= _OFTEN else "rarely"
    gain = float((top - ordered[second])[first == rank].sum() / count)
    return Slowest(kind, rank, share, gain)
