"""Sets of half-open intervals [start, end) as pairs of int64 arrays: union, intersection, difference, length.

A *set* here is disjoint, sorted and has no empty interval; `union` makes a set of any intervals. Knows only numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I64


class Intervals(NamedTuple):
    """A set: `start` and `end` of equal length n, start[i] < end[i] < start[i+1]. In nanoseconds."""

    start: I64
    end: I64


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: I64, end: I64) -> Intervals:
    """The set covered by any of the n intervals. Touching intervals merge; empty or reversed ones vanish."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.empty(len(start), np.bool_)
    opens[0] = True
    np.greater(start[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(start)) - 1
    return Intervals(start[first], reach[last])


def length(a: Intervals) -> int:
    """Total length of a set."""
    return int(a.end.sum() - a.start.sum())


def merge(*sets: Intervals) -> Intervals:
    """The set covered by any of several sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What both sets cover."""
    if len(a.start) == 0 or len(b.start) == 0:
        return EMPTY
    owner, other = overlaps(a, b)
    return Intervals(np.maximum(a.start[owner], b.start[other]), np.minimum(a.end[owner], b.end[other]))


def overlaps(a: Intervals, b: Intervals) -> tuple[I64, I64]:
    """The rows of both sets of every pair that overlaps, in order. Stretches of one set may touch."""
    first = np.searchsorted(b.end, a.start, side="right")  # first b that ends after a starts
    stop = np.searchsorted(b.start, a.end, side="left")  # first b that starts at or after a's end
    counts = np.maximum(stop - first, 0)
    owner = np.repeat(np.arange(len(a.start)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]


def complement(a: Intervals, start: int, end: int) -> Intervals:
    """What `a` leaves free of [start, end)."""
    a = clip(a, start, end)
    opens = np.concatenate([np.array([start], np.int64), a.end])
    closes = np.concatenate([a.start, np.array([end], np.int64)])
    keep = closes > opens
    return Intervals(opens[keep], closes[keep])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What `a` covers and `b` does not."""
    if len(a.start) == 0 or len(b.start) == 0:
        return a
    return intersection(a, complement(b, int(a.start[0]), int(a.end[-1])))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of a set inside [start, end)."""
    lo = int(np.searchsorted(a.end, start, side="right"))
    hi = int(np.searchsorted(a.start, end, side="left"))
    if hi <= lo:
        return EMPTY
    s, e = a.start[lo:hi], a.end[lo:hi]
    if s[0] >= start and e[-1] <= end:
        return Intervals(s, e)
    return Intervals(np.maximum(s, start), np.minimum(e, end))


def contains(a: Intervals, moment: I64) -> NDArray[np.bool_]:
    """Which of n moments the set covers."""
    at = np.searchsorted(a.start, moment, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (moment < np.append(a.end, 0)[at])
    return inside


def lengths_within(a: Intervals, start: I64, end: I64) -> I64:
    """Length of `a` inside each of m windows [start[i], end[i]); windows may overlap. Returns m lengths."""
    if len(a.start) == 0:
        return np.zeros(len(start), np.int64)
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(a.end - a.start)])

    def up_to(t: I64) -> I64:
        i = np.searchsorted(a.start, t, side="right")
        inside = np.where(i > 0, np.maximum(a.end[np.maximum(i - 1, 0)] - t, 0), 0)
        return np.asarray(total[i] - inside, dtype=np.int64)

    return up_to(np.maximum(end, start)) - up_to(start)
