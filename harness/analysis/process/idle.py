"""Where a device's time went: compute, communication, memory, idle, as lengths of unions; and the cause of idle time.

Formulas: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.host_calls import HostCause, HostStretches
from harness.analysis.process.intervals import Intervals, complement, intersection, lengths_within, overlaps, union
from harness.analysis.summary import IdleCause, TimeSplit
from harness.traces.trace import I32, I64, U8, Events

COMPUTE, COMMUNICATION, MEMORY, NOT_WORK = 0, 1, 2, 3  # the class of an event; see kinds.py
CHUNK = 1 << 19  # gaps judged at a time: keeps millions of gaps from filling the memory
USUAL_FACTOR = 8  # times the process's median distance between launches
MOST_LATENCY_NS = 50_000  # from a launch to the start on an idle device; more is waiting
_SAMPLE = 1 << 18  # launches and gaps from which the usual is taken


@dataclass(frozen=True, slots=True)
class Busy:
    """One device's time as sets of intervals. `any` is their union, `overlap` communication ∩ compute."""

    compute: Intervals
    communication: Intervals
    memory: Intervals
    overlap: Intervals
    working: Intervals  # compute ∪ communication
    any: Intervals


def busy(start_ns: I64, end_ns: I64, event_class: U8) -> Busy:
    """The sets of one device's n events; `event_class` is one of the four constants above."""

    def of(chosen: NDArray[np.bool_]) -> Intervals:
        return union(start_ns[chosen], end_ns[chosen])  # events come sorted: cheaper than merging unions

    compute, communication = of(event_class == COMPUTE), of(event_class == COMMUNICATION)
    return Busy(
        compute,
        communication,
        of(event_class == MEMORY),
        intersection(communication, compute),
        of(event_class <= COMMUNICATION),
        of(event_class != NOT_WORK),
    )


def split_window(sets: Busy, start_ns: int, end_ns: int) -> TimeSplit:
    """The split of the window [start_ns, end_ns)."""
    return split_windows(sets, np.array([start_ns]), np.array([end_ns]))[0]


def split_windows(sets: Busy, start_ns: I64, end_ns: I64) -> list[TimeSplit]:
    """The split of each of m windows."""
    inside = (
        lengths_within(of, start_ns, end_ns).tolist()
        for of in (sets.compute, sets.communication, sets.memory, sets.overlap, sets.working, sets.any)
    )
    return [
        TimeSplit(
            window_ns=window,
            compute_ns=compute,
            communication_ns=communication,
            exposed_communication_ns=communication - overlap,
            overlapped_communication_ns=overlap,
            memory_ns=memory,
            exposed_memory_ns=any_work - working,
            idle_ns=window - any_work,
        )
        for window, compute, communication, memory, overlap, working, any_work in zip(
            (end_ns - start_ns).tolist(), *inside, strict=True
        )
    ]


LEAST_USUAL_NS, MOST_USUAL_NS = 50_000, 500_000  # between launches that follow one another, whatever is usual


@dataclass(frozen=True)
class IdlePieces:
    """n pieces of gaps, in order: the cause, the gap, the stretch of `HostStretches` that it lies in (-1: none)."""

    start_ns: I64
    end_ns: I64
    cause: U8
    gap: I64
    stretch: I32


@dataclass(frozen=True)
class NextEvent:
    """What ended each of n gaps: when it was launched (-1 unknown), whether it is communication, its row, and whether
    it was made ready in the gap, for its first use; after the last gap of a recording nothing follows (row -1), and
    nothing was launched until its end."""

    launch_ns: I64
    is_communication: NDArray[np.bool_]
    row: I64
    is_made_ready: NDArray[np.bool_]

    def at(self, chosen: slice) -> NextEvent:
        """Of some gaps."""
        return NextEvent(*(getattr(self, column.name)[chosen] for column in fields(self)))


@dataclass(frozen=True)
class LaunchLatency:
    """How a process launches its work: how long a launch usually takes to reach an idle device, and the longest
    distance between launches that follow one another."""

    events: Events
    latency_ns: int

    @cached_property
    def moments(self) -> I64:
        """Of all known launches, in order."""
        known = self.events.launch_ns[self.events.launch_ns >= 0]
        known.sort()
        return known

    @cached_property
    def longest_ns(self) -> int:
        """USUAL_FACTOR times the median distance between launches, within the two limits."""
        distance = np.diff(self.moments[:_SAMPLE])
        distance = distance[distance > 0]
        usual = USUAL_FACTOR * float(np.median(distance)) if len(distance) else 0.0
        return int(min(max(usual, LEAST_USUAL_NS), MOST_USUAL_NS))

    def before(self, moment: I64) -> I64:
        """The last launch before each moment; -1 without one."""
        return np.append(self.moments, -1)[np.searchsorted(self.moments, moment, side="left") - 1]


def usual_latency(gaps: Intervals, following: NextEvent) -> int:
    """The time from a launch to its start within which 9 of 10 events start that an idle device waited for."""
    late = (following.launch_ns > gaps.start) & (following.launch_ns <= gaps.end)
    waited = (gaps.end - following.launch_ns)[late][:_SAMPLE]
    return min(int(np.quantile(waited, 0.9)), MOST_LATENCY_NS) if len(waited) else 0


def pieces_on_gpu(
    gaps: Intervals, following: NextEvent, host_stretches: HostStretches, launching: LaunchLatency
) -> IdlePieces:
    """The pieces of gaps of one device, which sum to the gaps exactly."""
    follows, known = following.row >= 0, following.launch_ns >= 0
    launched = np.where(follows, following.launch_ns, gaps.end)
    free = np.maximum(launched, host_stretches.launched_until(launched)) + launching.latency_ns
    free = np.where(known & follows, np.clip(free, gaps.start, gaps.end), gaps.end)
    host = Intervals(gaps.start, free)
    inside = np.flatnonzero(free > gaps.start)
    of_host = Intervals(host.start[inside], host.end[inside])
    by_told = _cut(of_host, Intervals(host_stretches.start_ns, host_stretches.end_ns))
    rest = _cut(of_host, complement(Intervals(host_stretches.start_ns, host_stretches.end_ns), *_hull(gaps)))
    rest = _apart_at_launches(rest, launched[inside[rest.of]], launching)
    gap = inside[rest.of]
    cause, after = _untold(rest, gap, launched, host_stretches, launching)
    cause[(cause == HostCause.HOST) & following.is_made_ready[gap]] = HostCause.FIRST_USE
    cause[follows[gap] & ~known[gap]] = HostCause.OTHER
    after[cause == HostCause.OTHER] = -1
    queued = np.flatnonzero(free < gaps.end)
    waiting = np.where(following.is_communication[queued], HostCause.COMMUNICATION, HostCause.OTHER).astype(np.uint8)
    return _joined(
        (by_told.start, by_told.end, host_stretches.cause[by_told.by], inside[by_told.of], by_told.by),
        (rest.start, rest.end, cause, gap, after),
        (free[queued], gaps.end[queued], waiting, queued, np.full(len(queued), -1)),
    )


@dataclass(frozen=True)
class _Cut:
    start: I64
    end: I64
    of: I64
    by: I64

    def at(self, chosen: NDArray[np.bool_]) -> _Cut:
        return _Cut(self.start[chosen], self.end[chosen], self.of[chosen], self.by[chosen])


def _cut(a: Intervals, b: Intervals) -> _Cut:
    """The pieces of `a` inside `b`, with the rows of both."""
    of, by = overlaps(a, b)
    return _Cut(np.maximum(a.start[of], b.start[by]), np.minimum(a.end[of], b.end[by]), of, by)


def _apart_at_launches(rest: _Cut, launched: I64, launching: LaunchLatency) -> _Cut:
    """The pieces, where they are long cut at the launches in them before the one that ended the gap: a host that
    launched nothing, and then work for a stream that had to wait, was not launching all the while."""
    until = np.minimum(rest.end, launched)
    long = until - rest.start > launching.longest_ns
    first = np.searchsorted(launching.moments, rest.start[long], side="right")
    long[long] = np.searchsorted(launching.moments, until[long], side="left") > first
    if not long.any():
        return rest
    edge = np.concatenate([[-1], launching.moments, [np.iinfo(np.int64).max]])
    cut = _cut(Intervals(rest.start[long], until[long]), Intervals(edge[:-1], edge[1:]))
    cut = cut.at(cut.end > cut.start)
    end = np.where(cut.end == until[long][cut.of], rest.end[long][cut.of], cut.end)
    start = np.concatenate([rest.start[~long], cut.start])
    order = np.argsort(start, kind="stable")
    end = np.concatenate([rest.end[~long], end])[order]
    of = np.concatenate([rest.of[~long], rest.of[long][cut.of]])[order]
    return _Cut(start[order], end, of, np.full(len(of), -1))


def _hull(gaps: Intervals) -> tuple[int, int]:
    return (int(gaps.start[0]), int(gaps.end[-1])) if len(gaps.start) else (0, 0)


def _untold(
    rest: _Cut, gap: I64, launched: I64, host_stretches: HostStretches, launching: LaunchLatency
) -> tuple[U8, I64]:
    """The causes of pieces in which nothing recorded tells what the host did, and the blocking call that they follow.

    The host came from its last launch, or from what is told of it before the piece, and goes on to what is told after
    it or to the launch. Where that takes no longer than launches that follow one another, it is launch-bound; where the
    gap began in a blocking call, the device ran dry because of that call."""
    before, after = host_stretches.around(rest.start)
    came = np.where(before >= 0, host_stretches.end_ns[np.maximum(before, 0)], -1) if len(host_stretches) else before
    next_told = (
        host_stretches.start_ns[np.minimum(after, len(host_stretches) - 1)] if len(host_stretches) else launched[gap]
    )
    until = np.minimum(launched[gap], np.where(after < len(host_stretches), next_told, launched[gap]))
    until = np.where(rest.end < until, rest.end, until)  # a launch is there
    soon = until - np.maximum(came, launching.before(until)) <= launching.longest_ns
    cause = np.where(soon, HostCause.LAUNCH, HostCause.HOST).astype(np.uint8)
    dry = soon & (before >= 0) & (came >= rest.start) if len(host_stretches) else np.zeros(len(soon), np.bool_)
    if dry.any():
        dry[dry] = host_stretches.blocks[before[dry]]
        cause[dry] = host_stretches.cause[before[dry]]
    return cause, np.where(dry, before, -1)


def _joined(*parts: tuple[I64, I64, U8, I64, I64]) -> IdlePieces:
    start, end, cause, gap, told = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")  # runs in order are merged
    return IdlePieces(start[order], end[order], cause[order].astype(np.uint8), gap[order], told[order].astype(np.int32))


def pieces_on_cpu(gaps: Intervals, host_stretches: HostStretches) -> IdlePieces:
    """As `pieces_on_gpu` for a trace whose operators are the work: nothing is launched, the host runs it."""
    stretches = Intervals(host_stretches.start_ns, host_stretches.end_ns)
    by_told, rest = _cut(gaps, stretches), _cut(gaps, complement(stretches, *_hull(gaps)))
    other = np.full(len(rest.of), HostCause.OTHER, np.uint8)
    return _joined(
        (by_told.start, by_told.end, host_stretches.cause[by_told.by], by_told.of, by_told.by),
        (rest.start, rest.end, other, rest.of, np.full(len(rest.of), -1)),
    )


def cause_table(sums: Mapping[str, int]) -> list[IdleCause]:
    """Nanoseconds by cause as a table of the causes that occur, largest first, with shares of the total."""
    total = max(sum(sums.values()), 1)
    rows = [IdleCause(cause=cause, duration_ns=ns, share=ns / total) for cause, ns in sums.items() if ns]
    return sorted(rows, key=lambda c: (-c.duration_ns, c.cause))
