"""What waits for something on another stream, and which calls of the host wait for the device.

Neither is recorded. A kernel that was launched long before and whose stream was free began right after something on
another stream ended: it waited for that. A call that returns right after something on the device ended waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching
from harness.analysis.process.idle import blocks
from harness.analysis.process.prepared import MeasuredProcess
from harness.replay.host import feeding_calls
from harness.traces.trace import I64

if TYPE_CHECKING:
    from harness.replay.device import Streams

IDLE_NS = 3_000  # a stream that is free for less has only its usual gap
SOON_NS = 15_000  # after the end of what it waited for
RETURN_NS = 30_000  # a call returns this soon after
BLOCKED_NS = 20_000  # a shorter call waited for nothing


@dataclass(frozen=True)
class Crossings:
    """n pairs: `target` cannot begin before `source` has ended. `since`: of a call, its beginning."""

    source: I64
    target: I64
    since: I64


def find_crossings(streams: Streams) -> Crossings:
    """Events that waited for another stream. source and target: rows of `streams`."""
    free = np.maximum(streams.launch_ns, streams.previous_ns)
    late = (
        (streams.start_ns - free > IDLE_NS)
        & (streams.launch_ns >= 0)
        & (streams.launch_ns < streams.start_ns - IDLE_NS)
    )
    waited = np.flatnonzero(late)
    source = _last_end_elsewhere(streams, waited)
    found = source >= 0
    waited, source = waited[found], source[found]
    soon = streams.start_ns[waited] - streams.end_ns[source] <= SOON_NS
    pairs = [(source[soon], waited[soon]), _before_messages(streams)]
    source, target = (np.concatenate(c) for c in zip(*pairs, strict=True))
    _, kept = np.unique(target, return_index=True)
    return Crossings(source[kept], target[kept], streams.start_ns[target[kept]])


def _last_end_elsewhere(streams: Streams, rows: NDArray[np.intp]) -> I64:
    """For each row, of the events on other streams the one that ended last before the row began; -1: none is near."""
    order = np.argsort(streams.end_ns, kind="stable")
    ends = streams.end_ns[order]
    at = np.searchsorted(ends, streams.start_ns[rows], side="right") - 1
    found = np.full(len(rows), -1, np.int64)
    for _ in range(8):  # a stream's own events may lie between
        usable = (at >= 0) & (found < 0)
        other = usable & (streams.index[order[np.maximum(at, 0)]] != streams.index[rows])
        found[other] = order[at[other]]
        at = at - 1
    return found


def _before_messages(streams: Streams) -> tuple[I64, I64]:
    """A collective waits for what was launched before it on the stream with most work, which made its data."""
    rows = np.flatnonzero(streams.message & (streams.launch_ns >= 0))
    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    work = np.bincount(streams.index[~streams.message], minlength=int(streams.index.max()) + 1)
    main = np.flatnonzero((streams.index == int(np.argmax(work))) & (streams.launch_ns >= 0))
    rows = rows[streams.index[rows] != int(np.argmax(work))]
    if not len(main) or not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    launches = np.maximum.accumulate(streams.launch_ns[main])
    before = np.searchsorted(launches, streams.launch_ns[rows]) - 1
    source = main[np.maximum(before, 0)]
    holds = (before >= 0) & (streams.end_ns[source] <= streams.start_ns[rows])
    return source[holds], rows[holds]


def host_waits(m: MeasuredProcess, window: tuple[int, int], streams: Streams) -> Crossings:
    """Calls that waited for the device: source is a row of `streams`, target the moment when the call returned. A call
    that always waits and found the device done waits for the last event launched before it."""
    calls = m.view.calls
    rows = feeding_calls(m)
    rows = rows[(calls.start_ns[rows] >= window[0]) & (calls.end_ns[rows] <= window[1])]
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    order = np.argsort(streams.end_ns, kind="stable")
    ends = streams.end_ns[order]
    at = np.searchsorted(ends, end, side="right") - 1
    last = order[np.maximum(at, 0)]
    seen = (at >= 0) & (end - start >= BLOCKED_NS) & (streams.end_ns[last] > start)
    seen &= (end - streams.end_ns[last] <= RETURN_NS) & (streams.launch_ns[last] <= end)
    always = matching(calls.name[rows], m.view.names, blocks) & ~seen
    by_launch = np.argsort(streams.launch_ns, kind="stable")
    before = np.searchsorted(streams.launch_ns[by_launch], start, side="right") - 1
    launched = by_launch[np.maximum(before, 0)]
    always &= (before >= 0) & (streams.launch_ns[launched] >= 0) & (streams.end_ns[launched] <= end)
    kept = seen | always
    source = np.where(seen, last, launched)[kept]
    return Crossings(source, end[kept], np.where(seen, start, end)[kept])
