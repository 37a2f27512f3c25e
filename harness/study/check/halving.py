"""Which of the things that differ between A and B makes B slow: halved by asking what A with some of them costs. Knows
neither runs nor things, only their number.

The things stand in an order, and are switched from A to B from the first one on. Between none of them and all of them
the loss rises; bisection follows the half in which it rises more, and needs log2(n) answers. The thing that is left is
then tried alone. If it costs little alone, it acts only with an earlier one, which bisection finds in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import NamedTuple

PRECISION = 0.25  # of an answer, as a share of B's loss
ACTS = 0.5  # of a rise, from which things make it; of a pair that acts only together each alone costs nothing

Loss = Callable[[Sequence[int]], "float | None"]
"""Things, by number from 0 → the share of B's loss that A with them has, 0 if it may be none; None: A with them cannot
run."""


class Cause(NamedTuple):
    """The fewest things that make it slow, as far as that was found. acts_with: those without which `things` cost
    nothing. is_enough: A with these and no others was seen to be slow."""

    things: list[int]
    acts_with: list[int]
    is_enough: bool

    @property
    def all(self) -> list[int]:
        return sorted({*self.things, *self.acts_with})


def most_checks(number: int) -> int:
    """The most checks for one cause among so many things, the first one included, which says that B is slow."""
    return ceil(log2(number)) + 2


def most_for_a_pair(number: int) -> int:
    """The further checks if the cause acts only with another thing."""
    return ceil(log2(number)) + 1


def find_cause(number: int, loss: Loss, needs: Callable[[int], Sequence[int]] = lambda thing: [thing]) -> Cause:
    """The cause among so many things, of which all together are slow. needs: a thing → it and the earlier ones without
    which it cannot run."""
    rise = _steepest(number, loss, 0.0, 1.0)
    things = list(range(rise.first, rise.last))
    alone = sorted({each for thing in things for each in needs(thing)})
    costs = rise.loss if rise.first == 0 else loss(alone) or 0.0
    if costs > ACTS * rise.loss:
        return Cause(things, [], True)
    earlier = [each for each in range(rise.first) if each not in alone]
    whole = rise.before + rise.loss
    partner = _steepest(len(earlier), lambda some: loss(sorted({*alone, *(earlier[i] for i in some)})), costs, whole)
    others = earlier[partner.first : partner.last]
    if partner.first == 0:
        return Cause(things, others, True)
    both = sorted({*alone, *(each for other in others for each in needs(other))})
    return Cause(things, others, (loss(both) or 0.0) > costs + ACTS * partner.loss)


class _Rise(NamedTuple):
    """With the things before `first` the loss is `before`, with those before `last` higher by `loss`."""

    first: int
    last: int
    before: float
    loss: float


def _steepest(number: int, loss: Loss, none: float, all_of_them: float) -> _Rise:
    """The neighbouring cuts, of those that can run, between which the loss rises most. none, all_of_them: the loss
    without and with these things."""
    low, high = (0, none), (number, all_of_them)
    cuts = list(range(1, number))
    while inside := [cut for cut in cuts if low[0] < cut < high[0]]:
        cut = inside[len(inside) // 2]
        share = loss(range(cut))
        if share is None:
            cuts.remove(cut)
        elif share - low[1] > high[1] - share:
            high = (cut, share)
        else:
            low = (cut, share)
    return _Rise(low[0], high[0], low[1], high[1] - low[1])
