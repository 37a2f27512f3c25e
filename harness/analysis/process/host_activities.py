"""The rows of the Summary that say what the host did while devices had no work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.analysis.process.host_activity import KINDS, PYTHON
from harness.analysis.process.host_calls import CAUSES
from harness.analysis.process.host_stacks import code_location
from harness.analysis.process.intervals import union
from harness.analysis.process.phases import PHASES
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.process.ranges import range_label
from harness.analysis.summary import CodeLocation, HostActivity
from harness.traces.trace import I32, I64

MOST_ROWS = 20  # of each process
LEAST_SHARE = 0.002  # of the window


class IdleActivities(NamedTuple):
    """Of one device: what the host did while it had no work, and n disjoint stretches in order, each with its row."""

    rows: list[HostActivity]
    start_ns: I64
    end_ns: I64
    which: I32


def of_process(measured: MeasuredProcess) -> list[HostActivity]:
    """The activities with most idle time in the windows of the process's devices."""
    rows = [row for device in measured.rows for row in of_device(measured, device).rows]
    return sorted(rows, key=lambda row: (-row.idle_ns, row.first_ns, row.cause))[:MOST_ROWS]


def of_device(m: MeasuredProcess, device: int) -> IdleActivities:
    """The activities with most idle time of one device, and when they were."""
    idle = m.idle[device]
    start, end, row = idle.of_host()
    total = np.bincount(row, weights=end - start, minlength=len(idle.activities)).astype(np.int64)
    window = m.windows[device][1] - m.windows[device][0]
    kept = np.argsort(-total, kind="stable")[:MOST_ROWS]
    kept = kept[total[kept] >= max(LEAST_SHARE * window, 1)]
    number = np.full(len(total) + 1, -1, np.int32)
    number[kept] = np.arange(len(kept))
    which = number[row]
    chosen = which >= 0
    rows = [_row(m, device, int(i), start[row == i], end[row == i]) for i in kept]
    return IdleActivities(rows, start[chosen], end[chosen], which[chosen])


def _row(m: MeasuredProcess, device: int, number: int, start: I64, end: I64) -> HostActivity:
    """start, end: its pieces."""
    known = int(m.idle[device].activities.function[number]) >= 0
    innermost = m.host_stacks.innermost(union(start, end)) if known else None
    return HostActivity(
        **named(m, device, number),
        where=where_of(m, device, number),
        innermost=code_location(innermost[0]) if innermost else None,
        innermost_ns=innermost[1] if innermost else None,
        rank=m.view.rank,
        device=device,
        idle_ns=int((end - start).sum()),
        count=len(start) - int(np.count_nonzero(start[1:] == end[:-1])),  # pieces that touch are one stretch
        longest_ns=int((end - start).max()),
        first_ns=int(start[0]),
    )


def named(m: MeasuredProcess, device: int, number: int) -> dict[str, Any]:
    """The names of one activity, as the fields of HostActivity."""
    row = m.idle[device].activities
    around = _name(m, int(row.range[number]))
    return {
        "cause": CAUSES[int(row.cause[number])],
        "what": what_of(m, device, number),
        "kind": KINDS[int(row.kind[number])],
        "call": _name(m, int(row.call[number])),
        "operator": _name(m, int(row.operator[number])),
        "range": None if around is None else range_label(around),
        "phase": PHASES[int(row.phase[number])],
    }


def what_of(m: MeasuredProcess, device: int, number: int) -> str | None:
    """What the host did, by its name; None where nothing was recorded, or for no row (-1)."""
    if number < 0:
        return None
    row = m.idle[device].activities
    name = _name(m, int(row.what[number]))
    if name is None:
        return None
    if int(row.kind[number]) != PYTHON:
        return range_label(name)
    place = code_location(name)
    return f"{place.function} ({place.file})" if place.file else place.function


def where_of(m: MeasuredProcess, device: int, number: int) -> CodeLocation | None:
    """The function in which that was; None where none was recorded."""
    if number < 0:
        return None
    name = _name(m, int(m.idle[device].activities.where[number]))
    return None if name is None else code_location(name)


def _name(m: MeasuredProcess, index: int) -> str | None:
    return m.view.names[index] if index >= 0 else None
