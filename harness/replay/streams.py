"""A process's events by stream: what waits for something on another stream, and which calls of the host wait for the
device.

Neither is recorded. A kernel that was launched long before and whose stream was free began right after something on
another stream ended: it waited for that. A call that returns right after something on the device ended waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching
from harness.analysis.process.host_calls import blocks, only_waits
from harness.analysis.process.idle import COMPUTE, NOT_WORK
from harness.analysis.process.prepared import MeasuredProcess
from harness.replay.host import feeding_calls
from harness.traces.trace import I64

IDLE_NS = 3_000  # a stream that is free for less has only its usual gap
_FURTHER = 8  # events back
SOON_NS = 15_000  # after the end of what it waited for
SOON_SHARE = 0.02  # the same, of a long wait
SOON_AT_MOST_NS = 100_000
RETURN_NS = 30_000  # a call returns this soon after
BLOCKED_NS = 20_000  # a shorter call waited for nothing


@dataclass(frozen=True)
class Streams:
    """n events by (stream, start). `row`: in the process's events. `previous_ns`: when the stream was free, -1 for the
    first of a stream. `index`: a number per stream of a device. `message`: it is a row of collectives."""

    row: NDArray[np.intp]
    start_ns: I64
    end_ns: I64
    launch_ns: I64
    index: I64
    previous_ns: I64
    message: NDArray[np.bool_]

    @property
    def first(self) -> NDArray[np.bool_]:
        return self.previous_ns < 0


def streams_of(m: MeasuredProcess, window: tuple[int, int], message_events: I64) -> Streams:
    """The work on devices that begins in a window. message_events: rows of events that carry collectives."""
    events = m.view.events
    inside = (events.start_ns >= window[0]) & (events.start_ns < window[1]) & (m.kinds.event_class != NOT_WORK)
    rows_ = np.flatnonzero(inside)
    keys = events.end_ns[rows_], events.start_ns[rows_], events.stream[rows_], events.device[rows_]
    rows_ = rows_[np.lexsort(keys)]
    device, stream = events.device[rows_], events.stream[rows_]
    changes = np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1]))[: len(rows_)]
    index = np.cumsum(changes) - 1
    start, end = events.start_ns[rows_], events.end_ns[rows_]
    reach = _reach(end, index)
    previous = np.where(changes, -1, np.concatenate([[-1], reach[:-1]])) if len(rows_) else start
    message = np.zeros(len(events) + 1, np.bool_)
    message[message_events] = True
    return Streams(rows_, start, np.maximum(end, reach), events.launch_ns[rows_], index, previous, message[rows_])


def _reach(end: I64, index: I64) -> I64:
    """The latest end so far on each event's own stream."""
    if not len(end):
        return end
    low = int(end.min())
    span = int(end.max()) - low + 1
    if (int(index[-1]) + 1) * span >= 1 << 63:  # streams without number, or days apart
        own = np.split(end, np.flatnonzero(np.diff(index)) + 1)
        return np.concatenate([np.maximum.accumulate(part) for part in own])
    return np.maximum.accumulate((end - low) + index * span) - index * span + low


def most_computed(m: MeasuredProcess, streams: Streams) -> I64:
    """The number of the stream with most computation, as an array of length one."""
    computes = m.kinds.event_class[streams.row] == COMPUTE
    work = np.where(computes, streams.end_ns - streams.start_ns, 0)
    return np.array([np.argmax(np.bincount(streams.index, weights=work))])


class HostWaits(NamedTuple):
    """n calls that waited for the end of `source`, a row of `Streams`: when they began and returned, and from when on
    they only waited; a call that found it done did not. synchronises: it does nothing else than wait."""

    source: I64
    began_ns: I64
    since_ns: I64
    returned_ns: I64
    synchronises: NDArray[np.bool_]


def find_stream_dependencies(streams: Streams) -> tuple[I64, I64]:
    """Source and target, rows of `streams`: each target cannot begin before its source on another stream has ended."""
    free = np.maximum(streams.launch_ns, streams.previous_ns)
    waited = np.flatnonzero((streams.start_ns - free > IDLE_NS) & (streams.launch_ns >= 0))
    source = _last_end_elsewhere(streams, waited)
    found = source >= 0
    waited, source = waited[found], source[found]
    long = np.minimum(SOON_SHARE * (streams.start_ns - free)[waited], SOON_AT_MOST_NS)
    soon = streams.start_ns[waited] - streams.end_ns[source] <= np.maximum(SOON_NS, long)
    pairs = [(source[soon], waited[soon]), _before_messages(streams)]
    source, target = (np.concatenate(c) for c in zip(*pairs, strict=True))
    _, kept = np.unique(target, return_index=True)
    return source[kept], target[kept]


def _last_end_elsewhere(streams: Streams, rows: NDArray[np.intp]) -> I64:
    """For each row, of the events on other streams the one that ended last before the row began; -1: none is near."""
    order = np.argsort(streams.end_ns, kind="stable")
    ends = streams.end_ns[order]
    at = np.searchsorted(ends, streams.start_ns[rows], side="right") - 1
    found = np.full(len(rows), -1, np.int64)
    for _ in range(_FURTHER):  # a stream's own events may lie between
        usable = (at >= 0) & (found < 0)
        other = usable & (streams.index[order[np.maximum(at, 0)]] != streams.index[rows])
        found[other] = order[at[other]]
        at = at - 1
    return found


def _before_messages(streams: Streams) -> tuple[I64, I64]:
    """A collective waits for what was launched before it on the stream with most work, which made its data."""
    rows, none = np.flatnonzero(streams.message & (streams.launch_ns >= 0)), np.empty(0, np.int64)
    if not len(rows):
        return none, none
    busiest = np.argmax(np.bincount(streams.index[~streams.message], minlength=int(streams.index.max()) + 1))
    main = np.flatnonzero((streams.index == busiest) & (streams.launch_ns >= 0))
    rows = rows[streams.index[rows] != busiest]
    if not len(main) or not len(rows):
        return none, none
    launches = np.maximum.accumulate(streams.launch_ns[main])
    before = np.searchsorted(launches, streams.launch_ns[rows]) - 1
    source = main[np.maximum(before, 0)]
    holds = (before >= 0) & (streams.end_ns[source] <= streams.start_ns[rows])
    return source[holds], rows[holds]


def host_waits(m: MeasuredProcess, window: tuple[int, int], streams: Streams) -> HostWaits:
    """Calls that waited for the device. A call that always waits and found the device done waits for the last event
    launched before it. A call that launches waits for its own stream only, whose queue is full, or for the copy that it
    launches."""
    calls = m.view.calls
    rows = feeding_calls(m)
    rows = rows[(calls.start_ns[rows] >= window[0]) & (calls.end_ns[rows] <= window[1])]
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    order = np.argsort(streams.end_ns, kind="stable")
    ends = streams.end_ns[order]
    at = np.searchsorted(ends, end, side="right") - 1
    by_launch = np.argsort(streams.launch_ns, kind="stable")
    before = np.searchsorted(streams.launch_ns[by_launch], start, side="right") - 1
    launched = by_launch[np.maximum(before, 0)]
    own = np.where((before >= 0) & (streams.launch_ns[launched] == start), streams.index[launched], -1)
    for _ in range(_FURTHER):  # other streams' events may have ended after its own
        other = (at >= 0) & (own >= 0) & (streams.index[order[np.maximum(at, 0)]] != own)
        at = at - other
    last = order[np.maximum(at, 0)]
    seen = (at >= 0) & ((own < 0) | (streams.index[last] == own))
    seen &= (end - start >= BLOCKED_NS) & (streams.end_ns[last] > start)
    seen &= (end - streams.end_ns[last] <= RETURN_NS) & (streams.launch_ns[last] <= end)
    always = matching(calls.name[rows], m.view.names, blocks) & ~seen
    ends = streams.end_ns[by_launch]  # of those launched until then the one which ends last
    latest = np.where(ends == np.maximum.accumulate(ends), np.arange(len(ends)), 0)
    until = by_launch[np.maximum.accumulate(latest)][np.maximum(before, 0)]
    launched = np.where(streams.end_ns[until] <= end, until, launched)
    always &= (before >= 0) & (streams.launch_ns[launched] >= 0) & (streams.end_ns[launched] <= end)
    kept = seen | always
    source = np.where(seen, last, launched)[kept]
    waited = seen | (streams.end_ns[launched] > start)
    synchronises = matching(calls.name[rows], m.view.names, only_waits)[kept]
    return HostWaits(source, start[kept], np.where(waited, start, end)[kept], end[kept], synchronises)
