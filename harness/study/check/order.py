"""The order in which the runs of two sides are made: A B B A, then B A A B, and again. Pure.

In four such runs both sides have the same mean position, so a machine that grows slower evenly favours none; the second
four begin with the other side, so that neither is always the first to follow a pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

Point = Literal["a", "b"]
BLOCKS: tuple[tuple[Point, ...], ...] = (("a", "b", "b", "a"), ("b", "a", "a", "b"))
BLOCK_RUNS = len(BLOCKS[0])


class Slot(NamedTuple):
    """One run to be made: of which side, the how manieth of it from 0, in which block."""

    point: Point
    repeat: int
    block: int


def slots(each: int) -> list[Slot]:
    """The runs of both sides, `each` times each, in order. With more runs the first ones stay the same."""
    return list(islice(_endless(), 2 * each))


def block_of(point: str, repeat: int) -> int:
    """The block of a side's run, which is two of each side."""
    return repeat // (BLOCK_RUNS // 2)


def _endless() -> Iterator[Slot]:
    made = {"a": 0, "b": 0}
    block = 0
    while True:
        for point in BLOCKS[block % len(BLOCKS)]:
            yield Slot(point, made[point], block)
            made[point] += 1
        block += 1
