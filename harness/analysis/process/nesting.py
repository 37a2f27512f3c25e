"""Which range owns a moment on a thread, and so which range launched each event.

An event belongs to the innermost range that was open on its launching thread when it was launched. Where that thread
has no open range (a thread of autograd), the range of the process's main thread counts. The outermost ranges of another
thread have the main thread's range as their parent: a hook of the backward pass lies in the main thread's `backward`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I64, Events, RangeKind, Ranges


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
            covered = np.minimum(self.end_ns[here], end_ns[at]) - np.maximum(
                self.start_ns[here], start_ns[at]
            )
            further = covered <= share * (end_ns[at] - start_ns[at])
            at = at[further if among is None else further | ~among[here]]
            own[at] = self.outer[own[at]]
            at = at[own[at] >= 0]
        return own

    def segments(self) -> tuple[I64, I64, I64]:
        """Start, end and owner of the stretches between starts and ends, of those that a range owns."""
        times = np.concatenate([self.start_ns, self.end_ns])
        times.sort()  # np.unique hashes, which takes ten times as long as sorting times that are nearly sorted
        times = times[np.append(True, times[1:] > times[:-1])]
        row = self.of(times[:-1])
        owned = row >= 0
        return times[:-1][owned], times[1:][owned], row[owned]


@dataclass(frozen=True)
class Nesting:
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


def nest(ranges: Ranges, events: Events, marks_thread: int | None = None) -> Nesting:
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
    return Nesting(threads, parent, own, main)


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


def owners_of_events(events: Events, nesting: Nesting) -> I64:
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
