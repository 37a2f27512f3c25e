"""Moves a trace's clock so that no time is below zero; must not know what the times mean.

-1 stands for "not known" in every column, so a time must not be below zero. Tools write such times where their clock
starts later than the recording.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.traces.columns import AnySpans
from harness.traces.trace import Trace


def moved_to_zero(trace: Trace) -> Trace:
    """The same trace, its clock's zero moved to the first time where that lies before it."""
    starts = [part.start_ns for part in (trace.events, trace.calls, trace.ranges, trace.host)]
    ahead = -min((int(column.min()) for column in starts if len(column)), default=0)
    return trace if ahead <= 0 else _moved(trace, ahead)


def _later(rows: AnySpans, ahead_ns: int) -> AnySpans:
    return replace(rows, start_ns=rows.start_ns + ahead_ns, end_ns=rows.end_ns + ahead_ns)


def _moved(trace: Trace, ahead: int) -> Trace:
    events, epoch_ns, until = trace.events, trace.identity.epoch_ns, trace.complete_until_ns
    launched = (events.launch_ns != -1) | (events.launch_thread != -1)
    launch_ns = np.where(launched, events.launch_ns + ahead, -1)
    return replace(
        trace,
        identity=replace(trace.identity, epoch_ns=None if epoch_ns is None else epoch_ns - ahead),
        events=replace(_later(events, ahead), launch_ns=launch_ns),
        calls=_later(trace.calls, ahead),
        ranges=_later(trace.ranges, ahead),
        host=_later(trace.host, ahead),
        collectives=_later(trace.collectives, ahead),
        metrics=[replace(series, time_ns=series.time_ns + ahead) for series in trace.metrics],
        nics=[replace(nic, start_ns=nic.start_ns + ahead, end_ns=nic.end_ns + ahead) for nic in trace.nics],
        complete_until_ns=None if until is None else until + ahead,
    )
