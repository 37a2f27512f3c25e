"""The order in which the runs of two arms are made: A B B A, then B A A B, and again. Pure.

In four such runs both arms have the same mean position, so a machine that grows slower evenly favours none; the second
four begin with the other arm, so that neither is always the first to follow a pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

ARMS = ("a", "b")
BLOCKS = (("a", "b", "b", "a"), ("b", "a", "a", "b"))
OF_AN_ARM = len(BLOCKS[0]) // len(ARMS)  # runs of an arm in a block


class Slot(NamedTuple):
    """One run to be made: of which arm, and the index of the repetition, from 0."""

    arm: str
    repeat: int


def slots(each: int) -> list[Slot]:
    """The runs of both arms, `each` times each, in order. With more runs the first ones stay the same."""
    return list(islice(_endless(), len(ARMS) * each))


def block_of(repeat: int) -> int:
    """The block of an arm's run."""
    return repeat // OF_AN_ARM


def _endless() -> Iterator[Slot]:
    for block in count():
        made = dict.fromkeys(ARMS, block * OF_AN_ARM)
        for arm in BLOCKS[block % len(BLOCKS)]:
            yield Slot(arm, made[arm])
            made[arm] += 1
