"""The rank that the others wait for, by the ranks' times without waiting. Knows arrays only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
LEAST_COST = 0.03  # of the step: less waiting for the slowest rank is not worth a word
FEWEST = 20  # steps
_CLEAR = 0.05  # of the step, by which a rank is slower than the others where it is clearly the slowest
_ALWAYS, _OFTEN = 0.9, 0.3  # of the steps
_MOST_OF_IT = 0.5  # of the waiting, of which a rank must cause so much to stand out
_BLOCK = 10  # steps that are permuted together, because the noise of neighbours is alike
_DRAWS = 199
_CHANCE = 0.01


class Slowest(NamedTuple):
    """The rank that the others wait for.

    kind: "always" (in 90 % of the steps), "often" (30 %), "rarely", "in turns" (no rank stands out) or "never" (the
    others wait less than 3 % of a step). rank: None where no rank stands out. share: of the steps, in which it is
    clearly the slowest. costs: per step, in the input's unit: what a step would gain if the rank was only as slow as
    the next one; "in turns": how long the median rank waits for the slowest. chance: of a rank to be the slowest as
    often, or as expensively, if all ranks were alike (permutation test).
    """

    kind: str
    rank: int | None
    share: float
    costs: float
    chance: float


def slowest(own_time: F64, step: float) -> Slowest:
    """The rank that is the slowest.

    own: (ranks, steps), durations without waiting for other ranks, NaN where not known. step: the job's median step.
    Steps in which the own time of a rank is not known are left out.
    """
    known = own_time[:, ~np.isnan(own_time).any(axis=0)]
    ranks, count = known.shape
    if ranks < 2 or count < FEWEST or step <= 0:
        return Slowest("never", None, 0.0, 0.0, 1.0)
    middle, second = (ranks - 1) // 2, ranks - 2
    ordered = np.partition(known, (middle, second), axis=0)
    first = known.argmax(axis=0)
    top = known.max(axis=0)
    waiting = top - ordered[middle]
    costs = float(waiting.mean())
    if costs < LEAST_COST * step:
        return Slowest("never", None, 0.0, costs, 1.0)
    clear = (waiting > _CLEAR * step).astype(float)
    spent = np.bincount(first, waiting, ranks)
    rank = int(spent.argmax())
    chance = min(_by_chance(first, clear, ranks), _by_chance(first, waiting, ranks))
    if chance > _CHANCE or spent[rank] < _MOST_OF_IT * spent.sum():
        return Slowest("in turns", None, 0.0, costs, chance)
    share = float(clear[first == rank].sum() / count)
    kind = "always" if share >= _ALWAYS else "often" if share >= _OFTEN else "rarely"
    gain = float((top - ordered[second])[first == rank].sum() / count)
    return Slowest(kind, rank, share, gain, chance)


def _by_chance(first: NDArray[np.intp], weights: F64, ranks: int) -> float:
    """How often a rank gets as much, if in each block of steps the ranks change places at random."""
    most = np.bincount(first, weights, ranks).max()
    if not most:
        return 1.0
    dice = np.random.default_rng(0)
    block = np.arange(len(first)) // _BLOCK
    shifts = dice.integers(0, ranks, (_DRAWS, block[-1] + 1))
    drawn = [np.bincount((first + shift[block]) % ranks, weights, ranks).max() for shift in shifts]
    return (1 + int(np.count_nonzero(np.array(drawn) >= most))) / (1 + _DRAWS)
