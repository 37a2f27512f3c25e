"""Stretches of a recording without samples, where its monitor died or was kept from sampling: what is on both sides is
never joined by a line. Standard library only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

Gap = tuple[int, int]  # unix nanoseconds of the last sample before it and of the first after it
Points = list[tuple[int, float]]

_PERIODS, _LEAST_NS = 10, 10_000_000_000  # a silence this long is none of a busy machine


def find_gaps(moments: Sequence[int], starts: Sequence[int], period_ns: int) -> tuple[Gap, ...]:
    """The gaps between samples, in order. starts: when the monitor began, and when it was started again."""
    found = {
        (before, after) for before, after in pairwise(moments)
        if after - before > max(_PERIODS * period_ns, _LEAST_NS)
    }  # fmt: skip
    for start in starts[1:]:
        place = bisect_left(moments, start)
        if 0 < place < len(moments):
            found.add((moments[place - 1], moments[place]))
    return tuple(sorted(found))


def pieces(points: Points, gaps: Sequence[Gap]) -> list[Points]:
    """The points between the gaps."""
    found, rest = [], points
    for _, end_ns in gaps:
        here = [point for point in rest if point[0] < end_ns]
        found.append(here)
        rest = rest[len(here) :]
    return [each for each in (*found, rest) if each]
