"""Sets of half-open intervals [start, end) as pairs of int64 arrays; nested ranges, and lanes without overlap.

A *set* here is disjoint, sorted and has no empty interval; `union` makes a set of any intervals. Knows only numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I64, Events, RangeKind, Ranges


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


def distinct(*moments: I64) -> I64:
    """Each moment once, in order. np.unique hashes, which takes ten times as long as sorting what is nearly sorted."""
    times = np.concatenate(moments)
    times.sort(kind="stable")
    return times[np.diff(times, prepend=times[:1] - 1) > 0]


def contains(a: Intervals, moment: I64) -> NDArray[np.bool_]:
    """Which of n moments the set covers."""
    at = np.searchsorted(a.start, moment, side="right") - 1
    return (at >= 0) & (moment < np.append(a.end, 0)[at])


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


@dataclass(frozen=True)
class Owners:
    """One thread's n ranges by (start, -end). `outer` is the innermost range that contains each, -1: none."""

    start_ns: I64
    end_ns: I64
    outer: I64
    row: I64  # in Ranges

    def of(self, time_ns: I64) -> I64:
        """The row that owns each moment: of the open ranges the one that started last; -1 without an open range."""
        return self.around(time_ns, time_ns + 1)

    def around(self, start_ns: I64, end_ns: I64) -> I64:
        """The row of the innermost range that covers each of n stretches whole; -1 without such a range.

        It is the last range that started, if that range covers the stretch; if not, only ranges around it can.
        """
        own = np.searchsorted(self.start_ns, start_ns, side="right") - 1
        at = np.flatnonzero(own >= 0)
        while len(at):
            at = at[self.end_ns[own[at]] < end_ns[at]]
            own[at] = self.outer[own[at]]
            at = at[own[at] >= 0]
        return np.where(own >= 0, self.row[np.maximum(own, 0)], -1)

    def covering(
        self, start_ns: I64, end_ns: I64, share: float, among: NDArray[np.bool_] | None = None
    ) -> NDArray[np.intp]:
        """The position here of the innermost range that covers more than `share` (at least a half) of each of n
        stretches, of those marked in `among`; -1 without such a range. It holds the middle, as do all around it."""
        own = np.searchsorted(self.start_ns, (start_ns + end_ns) // 2, side="right") - 1
        at = np.flatnonzero(own >= 0)
        while len(at):
            here = own[at]
            covered = np.minimum(self.end_ns[here], end_ns[at]) - np.maximum(self.start_ns[here], start_ns[at])
            further = covered <= share * (end_ns[at] - start_ns[at])
            at = at[further if among is None else further | ~among[here]]
            own[at] = self.outer[own[at]]
            at = at[own[at] >= 0]
        return own

    def segments(self) -> tuple[I64, I64, I64]:
        """Start, end and owner of the stretches between starts and ends, of those that a range owns."""
        times = distinct(self.start_ns, self.end_ns)
        row = self.of(times[:-1])
        owned = row >= 0
        return times[:-1][owned], times[1:][owned], row[owned]


@dataclass(frozen=True)
class RangeTree:
    """All ranges of a process: the owners per thread, and for each range row its parent row, -1 without a parent.

    `own_parent` is the parent on the range's own thread; `parent` is it too, else the main thread's range around it."""

    threads: dict[int, Owners]
    parent: I64
    own_parent: I64
    main_thread: int | None

    @property
    def main(self) -> Owners | None:
        """The main thread's ranges."""
        return None if self.main_thread is None else self.threads.get(self.main_thread)


def nest(ranges: Ranges, events: Events, marks_thread: int | None = None) -> RangeTree:
    """Every thread's ranges with the ranges around them. START_END ranges need not nest and own nothing.

    The main thread is the thread with the step marks, `marks_thread`. Without marks it is, of the threads with ranges,
    the thread that launched most events; of several such threads, the one with most time in ranges.
    """
    parent = np.full(len(ranges.start_ns), -1, np.int64)
    usable = (ranges.kind != RangeKind.START_END) & (ranges.end_ns > ranges.start_ns) & (ranges.start_ns >= 0)
    threads: dict[int, Owners] = {}
    for thread, rows in _by_thread(ranges, usable):
        end = ranges.end_ns[rows]
        outer = containing(end)
        parent[rows] = np.where(outer >= 0, rows[np.maximum(outer, 0)], -1)
        threads[thread] = Owners(ranges.start_ns[rows], end, outer, rows)
    main = marks_thread if marks_thread in threads else _busiest_thread(ranges, usable, events)
    own = parent.copy()
    if main is not None:
        apart = np.flatnonzero(usable & (parent < 0) & (ranges.thread != main))
        parent[apart] = threads[main].around(ranges.start_ns[apart], ranges.end_ns[apart])
    return RangeTree(threads, parent, own, main)


def _by_thread(ranges: Ranges, usable: NDArray[np.bool_]) -> Iterator[tuple[int, I64]]:
    """Each thread with its usable rows; ranges come sorted by thread."""
    rows = np.flatnonzero(usable)
    thread = ranges.thread[rows]
    for part in np.split(rows, np.flatnonzero(thread[1:] != thread[:-1]) + 1):
        if len(part):
            yield int(ranges.thread[part[0]]), part


def containing(end: I64) -> I64:
    """For ranges sorted by (start, -end), the last earlier range that ends no earlier; -1 without such a range.

    All ranges jump at once: every range between a range and its candidate ends too early, so the next to try is the
    candidate of the candidate. A few rounds are enough, because jumps double.
    """
    outer = np.arange(-1, len(end) - 1)
    open_ = np.flatnonzero(outer >= 0)
    while len(open_):
        open_ = open_[end[outer[open_]] < end[open_]]
        outer[open_] = outer[outer[open_]]
        open_ = open_[outer[open_] >= 0]
    return outer


def _busiest_thread(ranges: Ranges, usable: NDArray[np.bool_], events: Events) -> int | None:
    weights = [
        (
            int(np.count_nonzero(events.launch_thread == thread)),
            int((ranges.end_ns - ranges.start_ns)[rows].sum()),
            thread,
        )
        for thread, rows in _by_thread(ranges, usable)
    ]
    return max(weights)[2] if weights else None


def owners_of_events(events: Events, nesting: RangeTree) -> I64:
    """The row of the range that launched each of n events; -1 without an open range or a recorded launch."""
    owner = np.full(len(events), -1, np.int64)
    launched = events.launch_ns >= 0
    for thread, owners in nesting.threads.items():
        mine = np.flatnonzero(launched & (events.launch_thread == thread))
        owner[mine] = owners.of(events.launch_ns[mine])
    if nesting.main is not None:
        orphan = np.flatnonzero(launched & (owner < 0))
        owner[orphan] = nesting.main.of(events.launch_ns[orphan])
    return owner


def lanes(start_ns: I64, end_ns: I64, group: I64) -> I64:
    """For each interval the lowest lane of its group in which nothing else runs at that time.

    Kernels of one stream may overlap (programmatic dependent launch, graphs); intervals of one lane may not.
    """
    lane = np.zeros(len(start_ns), np.int64)
    order = np.lexsort((end_ns, start_ns, group))
    bounds = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = order[low:high]
        latest = np.maximum.accumulate(end_ns[part])
        if np.any(start_ns[part][1:] < latest[:-1]):
            lane[part] = _first_free(start_ns[part].tolist(), end_ns[part].tolist())
    return lane


def _first_free(starts: list[int], ends: list[int]) -> list[int]:
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    taken = 0
    found = []
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, taken = taken, taken + 1
        heapq.heappush(busy, (end, lane))
        found.append(lane)
    return found
