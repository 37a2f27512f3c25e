"""The phase of training that a range or a moment belongs to: forward, backward, optimizer, data loading, sends and
receives, or the time between two marked steps."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.breakdown import COMMUNICATION, COMPUTE, NOT_WORK
from harness.analysis.process.by_name import used
from harness.analysis.process.intervals import Intervals, contains
from harness.analysis.process.nesting import Nesting
from harness.analysis.process.ranges import by_depth
from harness.analysis.summary import PhaseTime
from harness.traces.operators import counted
from harness.traces.trace import I64, U8, Events, Ranges

PHASES = ("forward", "backward", "optimizer", "data loading", "send/recv", "between steps", "other")
DATA, BETWEEN, OTHER = 3, 5, 6  # indices into PHASES
_PATTERNS = (
    (0, re.compile(r"^(## )?forward|\.forward$|^pre_forward", re.IGNORECASE)),
    (1, re.compile(r"^(## )?backward|\.backward$|^autograd", re.IGNORECASE)),
    (2, re.compile(r"^(## )?(optimizer|zero_grad|scheduler)|Optimizer\.(step|zero_grad)", re.IGNORECASE)),
    (3, re.compile(r"data[ _]?load|DataLoader", re.IGNORECASE)),
    (4, re.compile(r"^(send|recv)", re.IGNORECASE)),
)


def phase_of_name(name: str) -> int:
    """Index into PHASES of a range's own name.

    >>> PHASES[phase_of_name("forward mb3 stage1")], PHASES[phase_of_name("batch_7")]
    ('forward', 'other')
    """
    return next((phase for phase, pattern in _PATTERNS if pattern.search(name)), OTHER)


def phases(ranges: Ranges, names: list[str], nesting: Nesting) -> NDArray[np.int8]:
    """The phase of each of n range rows: its own, else the phase of the innermost range around it that has one."""
    table = np.full(len(names) + 1, OTHER, np.int8)
    for i in used(ranges.name):
        table[i] = phase_of_name(names[i])
    phase: NDArray[np.int8] = table[ranges.name]
    for rows in reversed(by_depth(nesting.parent)):
        inherit = rows[phase[rows] == OTHER]
        phase[inherit] = phase[nesting.parent[inherit]]
    return phase


PhaseSum = tuple[int, int, int | None, int | None]  # count, duration, compute, communication; nanoseconds
PhaseSums = dict[str, PhaseSum]


def phase_sums(
    events: Events, phase: NDArray[np.int8], event_class: U8, chosen: NDArray[np.bool_]
) -> PhaseSums:
    """Sums per phase of the chosen events; `phase` is of every event."""
    rows = np.flatnonzero(chosen & (event_class != NOT_WORK))
    of = phase[rows]
    duration = (events.end_ns - events.start_ns)[rows]
    kind = event_class[rows]
    counts = np.isin(rows, counted(events, rows)[0])
    sums: PhaseSums = {}
    for i, name in enumerate(PHASES):
        mine = of == i
        if mine.any():
            numbers = (
                duration[mine],
                duration[mine & (kind == COMPUTE)],
                duration[mine & (kind == COMMUNICATION)],
            )
            total, compute, communication = (int(n.sum()) for n in numbers)
            sums[name] = (int(np.count_nonzero(mine & counts)), total, compute, communication)
    return sums


def phase_table(sums: PhaseSums) -> list[PhaseTime]:
    """The sums as rows, most time first."""
    total = max(sum(row[1] for row in sums.values()), 1)
    rows = [
        PhaseTime(
            phase=name, kernels=n, duration_ns=ns, compute_ns=compute, communication_ns=comm, share=ns / total
        )
        for name, (n, ns, compute, comm) in sums.items()
    ]
    return sorted(rows, key=lambda r: (-r.duration_ns, r.phase))


def phase_of_moments(
    owner: I64, phase: NDArray[np.int8], moment_ns: I64, between: Intervals
) -> NDArray[np.int8]:
    """The phases of moments: BETWEEN for those between two marked steps, unless data is loaded there; else by the range
    rows that own them, OTHER without an owner (-1)."""
    found: NDArray[np.int8] = np.append(phase, np.int8(OTHER))[owner]
    found[contains(between, moment_ns) & (found != DATA)] = BETWEEN
    return found
