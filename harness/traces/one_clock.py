"""The clocks of host and devices as one. A tool converts the devices' times to the host's clock; where it fails, work
starts before it is launched, or long after it on a device that has nothing else to do. Knows no analysis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.traces.columns import AnySpans
from harness.traces.trace import I64, Activity, Events, Trace

APART_NS = 1_000_000  # by less, no cause of idle time changes
_FEWEST = 10  # launches
_TOGETHER_NS = 1_000_000  # the shortest delays of all thirds of a recording, or those on an idle device
_IDLE_NS = 20_000  # a device without work for so long starts at once what is launched
_LATENCY_NS = 5_000  # of a launch on an idle device
_PARTS = 3


def on_one_clock(trace: Trace) -> Trace:
    """The trace with the devices' times on the host's clock, where they are apart by a constant. Where they are apart
    and it is not known by how much, `device_clock_ns` is None."""
    offset = _offset_ns(trace.events)
    if not offset:
        return replace(trace, device_clock_ns=offset)
    moved, with_event = _LATENCY_NS - offset, trace.collectives.event >= 0
    return replace(
        trace,
        events=_moved(trace.events, moved),
        collectives=_moved(trace.collectives, np.where(with_event, moved, 0)),
        device_clock_ns=offset,
    )


def _moved(spans: AnySpans, by_ns: int | I64) -> AnySpans:
    return replace(spans, start_ns=spans.start_ns + by_ns, end_ns=spans.end_ns + by_ns)


def _offset_ns(events: Events) -> int | None:
    """By how much the devices' clock is ahead of the host's; 0: they agree, as far as it shows; None: they do not, and
    the difference changes."""
    rows = np.flatnonzero((events.launch_ns >= 0) & (events.activity <= Activity.MEMSET))
    if len(rows) < _FEWEST:
        return 0
    delay = (events.start_ns - events.launch_ns)[rows]
    least = [int(part.min()) for part in np.array_split(delay, _PARTS)]
    if (delay < -APART_NS).sum() >= _FEWEST:  # nothing starts before its launch
        return min(least) if max(least) - min(least) <= _TOGETHER_NS else None
    waited_for = delay[_idle_before(events)[rows] >= _IDLE_NS]
    if min(least) <= APART_NS or len(waited_for) < _FEWEST:
        return 0
    return min(least) if np.quantile(waited_for, 0.9) - min(least) <= _TOGETHER_NS else 0


def _idle_before(events: Events) -> I64:
    """How long each event's device had no work before it; -1 for the first of a device."""
    found = np.full(len(events), -1, np.int64)
    starts = np.flatnonzero(np.diff(events.device, prepend=-2))
    for first, last in zip(starts, np.append(starts[1:], len(events)), strict=True):
        reach = np.maximum.accumulate(events.end_ns[first:last])
        found[first + 1 : last] = np.maximum(events.start_ns[first + 1 : last] - reach[:-1], 0)
    return found
