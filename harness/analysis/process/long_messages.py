"""The collectives of a process that are exposed longest, with their place in the program."""

from __future__ import annotations

import re

import numpy as np

from harness.analysis.process.by_name import matching
from harness.analysis.process.collective_rows import CollectiveRows, launchers, row_events
from harness.analysis.process.host_stacks import code_location
from harness.analysis.process.intervals import Intervals
from harness.analysis.process.phases import PHASES
from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.analysis.process.ranges import first_labels, range_label
from harness.analysis.process.traffic import exposed_in
from harness.analysis.summary import CodeLocation, LongMessage
from harness.traces.trace import I64, RangeKind

MOST_LONG = 5  # rows of one process: a sentence names one or two
MOST_CALLS = 256  # of a row: more of them are no single message, and are not compared with other ranks one by one
_ISSUES = re.compile(
    r"nccl|gloo:|c10d::|_c10d_functional|record_param_comms"
)  # ranges that torch and NCCL themselves make
_ALIKE = 0.5  # of the longest one's exposed time, from which messages of unknown size count as of one size


def of_process(measured: MeasuredProcess) -> list[LongMessage]:
    """The collectives in the window that are exposed longest, one row per kind, group, phase, size and place."""
    if not measured.windows:
        return []
    begin, end = extent_of(measured.windows)
    every, events = measured.collectives, row_events(measured.view, measured.kinds)
    inside = np.flatnonzero((every.start_ns >= begin) & (every.start_ns < end))
    if not len(inside):
        return []
    table, event = every.at(inside), events[inside]
    exposed = exposed_in(measured, table.start_ns, table.end_ns)
    place = _places(measured, launchers(measured.nesting, measured.owner, event, table.start_ns))
    columns = np.stack([table.key.astype(np.int64), table.phase.astype(np.int64), table.bytes, place])
    _, alike = np.unique(columns, axis=1, return_inverse=True)
    alike = alike.reshape(-1)
    groups = [_long(table, exposed, np.flatnonzero(alike == i)) for i in range(int(alike.max()) + 1)]
    groups.sort(key=lambda rows: (-int(exposed[rows].sum()), int(rows[0])))
    found = []
    for rows in groups[:MOST_LONG]:
        longest = int(rows[np.argmax(exposed[rows])])
        label, where = int(place[longest]), _function(measured, int(event[longest]))
        found.append(_long_message(measured, table.at(rows), int(exposed[rows].sum()), label, where))
    return found


def _long(table: CollectiveRows, exposed: I64, rows: I64) -> I64:
    """Of messages that look alike, those that are of one size: where it was not recorded, by their exposed time."""
    if int(table.bytes[rows[0]]) >= 0:
        return rows
    long: I64 = rows[exposed[rows] >= _ALIKE * exposed[rows].max()]
    return long


def _long_message(
    m: MeasuredProcess, rows: CollectiveRows, exposed_ns: int, label: int, where: CodeLocation | None
) -> LongMessage:
    key, size, steps = rows.keys[int(rows.key[0])], int(rows.bytes[0]), int(m.steps.counted.sum())
    return LongMessage(
        rank=m.view.rank,
        kind=key.kind,
        group=key.group,
        group_size=key.group_size,
        dtype=key.dtype,
        phase=PHASES[int(rows.phase[0])],
        bytes=size if size >= 0 else None,
        range=range_label(m.view.names[label]) if label >= 0 else None,
        where=where,
        count=len(rows.key),
        count_per_step=len(rows.key) / steps if steps else None,
        duration_ns=int((rows.end_ns - rows.start_ns).sum()),
        exposed_ns=exposed_ns,
        collectives=rows.row.tolist() if len(rows.row) <= MOST_CALLS else [],
    )


def _places(m: MeasuredProcess, owner: I64) -> I64:
    """The name of the innermost range of the program around each of n collectives, of those that share its label; -1
    without one. Ranges that only mark a step or issue the collective are none."""
    ranges, names = m.view.ranges, m.view.names
    hidden = (ranges.kind == RangeKind.STEP) | matching(ranges.name, names, set(m.steps.names).__contains__)
    hidden |= matching(ranges.name, names, _ISSUES.match)
    hidden, parent, at = np.append(hidden, False), np.append(m.nesting.parent, -1), owner.copy()
    while (up := hidden[at]).any():
        at[up] = parent[at[up]]
    found: I64 = np.append(first_labels(ranges, names), -1)[at]
    return found


def _function(m: MeasuredProcess, event: int) -> CodeLocation | None:
    """The Python function from which an event was launched."""
    if event < 0 or m.view.events.launch_ns[event] < 0:
        return None
    launch = m.view.events.launch_ns[event : event + 1]
    at = Intervals(launch, launch + 1)
    _, where, _ = m.host_stacks.functions(int(m.view.events.launch_thread[event]), at)
    return code_location(m.view.names[int(where[0])]) if where[0] >= 0 else None
