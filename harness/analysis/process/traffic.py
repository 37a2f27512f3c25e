"""A process's collectives by kind, group, phase and size: how many a step has, in how many passes, and how exposed; and
those that are exposed longest, with their place in the program."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.collective_rows import CollectiveRows, launchers, row_events
from harness.analysis.process.host_stacks import code_location
from harness.analysis.process.intervals import Intervals, difference, lengths_within
from harness.analysis.process.phases import OTHER, PHASES, phases
from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.analysis.process.ranges import by_depth, range_label
from harness.analysis.summary import CodeLocation, LongMessage, Traffic
from harness.traces.trace import I64, RangeKind

MOST_ROWS = 100  # of one process, the longest
MOST_LONG = 5  # rows of one process: a sentence names one or two
MOST_CALLS = 256  # of a row: more of them are no single message, and are not compared with other ranks one by one
_ISSUES = re.compile(
    r"nccl|gloo:|c10d::|_c10d_functional|record_param_comms"
)  # ranges that torch and NCCL themselves make
_ALIKE = 0.5  # of the longest one's exposed time, from which messages of unknown size count as of one size


def of_process(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> list[Traffic]:
    """One row per kind, group, phase and size of the collectives in the window, the longest first; empty without
    counted steps."""
    window, steps = measured.steps.window, int(measured.steps.counted.sum())
    if window is None or measured.windows == {}:
        return []
    table, event = measured.collectives, row_events(measured.view, measured.kinds)
    inside = np.flatnonzero((table.start_ns >= window[0]) & (table.start_ns < window[1]))
    if not len(inside):
        return []
    table = table.at(inside)
    owner = launchers(measured.nesting, measured.owner, event[inside], table.start_ns)
    columns = np.stack([table.key.astype(np.int64), table.phase.astype(np.int64), table.bytes])
    alike, first, row = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    row, n = row.reshape(-1), alike.shape[1]
    pass_of, passes = _passes(measured, owner, window)
    pairs = np.unique(np.stack([row, pass_of])[:, pass_of >= 0], axis=1)
    duration, exposed = (
        np.bincount(row, ns, n) / steps
        for ns in (table.end_ns - table.start_ns, _exposed(measured, table.start_ns, table.end_ns))
    )
    count, used = np.bincount(row, minlength=n) / steps, np.bincount(pairs[0], minlength=n) / steps
    found = []
    for i in np.argsort(-duration, kind="stable")[:MOST_ROWS].tolist():
        key, phase, size = table.keys[table.key[first[i]]], int(alike[1, i]), int(alike[2, i])
        found.append(
            Traffic(
                rank=measured.view.rank,
                kind=key.kind,
                group=key.group,
                group_size=key.group_size,
                phase=PHASES[phase],
                bytes=size if size >= 0 else None,
                count_per_step=float(count[i]),
                pass_count_per_step=float(passes[phase] / steps),
                used_pass_count_per_step=float(used[i]),
                step_duration_ns=round(duration[i]),
                step_exposed_ns=round(exposed[i]),
            )
        )
    return found


def _exposed(m: MeasuredProcess, start: I64, end: I64) -> I64:
    """The exposed communication in each of n collectives. What several of them share counts in proportion."""
    alone = [difference(sets.communication, sets.compute) for sets in m.busy.values()]
    each = sum((lengths_within(of, start, end) for of in alone), np.zeros(len(start), np.int64))
    reach = np.array([start.min()]), np.array([end.max()])
    total = sum(int(lengths_within(of, *reach)[0]) for of in alone)
    exposed: I64 = np.rint(each * min(total / max(int(each.sum()), 1), 1.0)).astype(np.int64)
    return exposed


def _passes(m: MeasuredProcess, owner: I64, window: tuple[int, int]) -> tuple[I64, I64]:
    """The pass of each of n collectives, -1 for those of no phase, and the number of passes of each phase in the
    window. A pass is all ranges of one phase with no other phase between them; what lies in them belongs to it."""
    ranges, parent = m.view.ranges, m.nesting.parent
    phase = phases(ranges, m.view.names, m.nesting)
    outermost = np.arange(len(parent))
    for rows in reversed(by_depth(parent)):
        inner = rows[phase[outermost[parent[rows]]] != OTHER]
        outermost[inner] = outermost[parent[inner]]
    tops = np.flatnonzero((outermost == np.arange(len(parent))) & (phase != OTHER))
    tops = tops[(ranges.start_ns[tops] >= window[0]) & (ranges.start_ns[tops] < window[1])]
    tops = tops[np.argsort(ranges.start_ns[tops], kind="stable")]
    begins = np.diff(phase[tops], prepend=-1) != 0
    pass_of = np.full(len(parent) + 1, -1)
    pass_of[tops] = np.cumsum(begins)
    of_range = np.append(pass_of[outermost], -1)
    return of_range[owner], np.bincount(phase[tops[begins]], minlength=len(PHASES))


def long_messages(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> list[LongMessage]:
    """The collectives in the window that are exposed longest, one row per kind, group, phase, size and place."""
    if not measured.windows:
        return []
    begin, end = extent_of(measured.windows)
    every, events = measured.collectives, row_events(measured.view, measured.kinds)
    inside = np.flatnonzero((every.start_ns >= begin) & (every.start_ns < end))
    if not len(inside):
        return []
    table, event = every.at(inside), events[inside]
    exposed = _exposed(measured, table.start_ns, table.end_ns)
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
    first: dict[str, int] = {}
    table = np.full(len(names) + 1, -1)
    for i in used(ranges.name):
        table[i] = first.setdefault(range_label(names[i]), i)
    found: I64 = table[np.append(ranges.name, -1)[at]]
    return found


def _function(m: MeasuredProcess, event: int) -> CodeLocation | None:
    """The Python function from which an event was launched."""
    if event < 0 or m.view.events.launch_ns[event] < 0:
        return None
    launch = m.view.events.launch_ns[event : event + 1]
    at = Intervals(launch, launch + 1)
    _, where, _ = m.host_stacks.functions(int(m.view.events.launch_thread[event]), at)
    return code_location(m.view.names[int(where[0])]) if where[0] >= 0 else None
