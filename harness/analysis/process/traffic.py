"""A process's collectives by kind, group, phase and size: how many a step has, in how many passes, and how exposed."""

from __future__ import annotations

import numpy as np

from harness.analysis.process.collective_rows import launchers, row_events
from harness.analysis.process.intervals import difference, lengths_within
from harness.analysis.process.phases import PHASES, Phase, phases
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.process.ranges import by_depth
from harness.analysis.summary import Traffic
from harness.traces.trace import I64

MOST_ROWS = 100  # of one process, the longest


def of_process(measured: MeasuredProcess) -> list[Traffic]:
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
        for ns in (table.end_ns - table.start_ns, exposed_in(measured, table.start_ns, table.end_ns))
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


def exposed_in(m: MeasuredProcess, start: I64, end: I64) -> I64:
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
        inner = rows[phase[outermost[parent[rows]]] != Phase.OTHER]
        outermost[inner] = outermost[parent[inner]]
    tops = np.flatnonzero((outermost == np.arange(len(parent))) & (phase != Phase.OTHER))
    tops = tops[(ranges.start_ns[tops] >= window[0]) & (ranges.start_ns[tops] < window[1])]
    tops = tops[np.argsort(ranges.start_ns[tops], kind="stable")]
    begins = np.diff(phase[tops], prepend=-1) != 0
    pass_of = np.full(len(parent) + 1, -1)
    pass_of[tops] = np.cumsum(begins)
    of_range = np.append(pass_of[outermost], -1)
    return of_range[owner], np.bincount(phase[tops[begins]], minlength=len(PHASES))
