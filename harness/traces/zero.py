"""A trace's times on a clock that none of them precedes; what they mean is not looked at.

-1 stands for "not known" in every column, so a time below zero would look like it. Tools write such times where
their clock starts with something other than the recording.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.traces.trace import Trace


def from_zero(trace: Trace) -> Trace:
    """The same trace, its clock's zero moved to the first time where that lies before it."""
    starts = [part.start_ns for part in (trace.events, trace.calls, trace.ranges)]
    ahead = -min((int(column.min()) for column in starts if len(column)), default=0)
    return trace if ahead <= 0 else _moved(trace, ahead)


def _moved(trace: Trace, ahead: int) -> Trace:
    events, epoch_ns, until = trace.events, trace.identity.epoch_ns, trace.complete_until_ns
    launched = (events.launch_ns != -1) | (events.launch_thread != -1)
    return replace(
        trace,
        identity=replace(trace.identity, epoch_ns=None if epoch_ns is None else epoch_ns - ahead),
        events=replace(
            events,
            start_ns=events.start_ns + ahead,
            end_ns=events.end_ns + ahead,
            launch_ns=np.where(launched, events.launch_ns + ahead, -1),
        ),
        calls=replace(trace.calls, start_ns=trace.calls.start_ns + ahead, end_ns=trace.calls.end_ns + ahead),
        ranges=replace(
            trace.ranges, start_ns=trace.ranges.start_ns + ahead, end_ns=trace.ranges.end_ns + ahead
        ),
        collectives=replace(
            trace.collectives,
            start_ns=trace.collectives.start_ns + ahead,
            end_ns=trace.collectives.end_ns + ahead,
        ),
        metrics=[replace(series, time_ns=series.time_ns + ahead) for series in trace.metrics],
        complete_until_ns=None if until is None else until + ahead,
    )
