"""The kernels of one process by name: their times, and how much of them lies beside communication or compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.idle import CHUNK, COMMUNICATION
from harness.analysis.process.intervals import Intervals, clip, lengths_within
from harness.analysis.process.kinds import HOST
from harness.analysis.process.part import KernelSum
from harness.analysis.process.prepared import MeasuredProcess
from harness.traces.operators import counted
from harness.traces.trace import I64, Activity


def kernel_sums(m: MeasuredProcess, chosen: NDArray[np.bool_]) -> list[KernelSum]:
    """Sums of the chosen events per kernel name and kind; on a CPU of the operators and collectives."""
    events, kinds = m.view.events, m.kinds
    chosen = chosen & (events.activity != Activity.MEMCPY) & (events.activity != Activity.MEMSET)
    width = max(len(kinds.labels), 1)

    def code_of(rows: I64) -> I64:
        return events.name[rows].astype(np.int64) * width + kinds.code[rows]

    kernels, duration = counted(events, np.flatnonzero(chosen))
    code = code_of(kernels)
    size = (int(code.max()) + 1) if len(code) else 0
    count = np.bincount(code, minlength=size)
    total = np.bincount(code, weights=duration.astype(np.float64), minlength=size)  # exact below 2**53 ns
    low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(low, code, duration)
    np.maximum.at(high, code, duration)
    beside = overlapped_ns(m, chosen, code_of, size)
    columns = (count, total.astype(np.int64), low, high, beside)
    sums = []
    for at in np.flatnonzero(count).tolist():
        kind, precision = kinds.labels[at % width]
        n, total_ns, shortest_ns, longest_ns, overlapped = (int(column[at]) for column in columns)
        known_ns = -1 if kind == HOST else overlapped
        name = m.view.names[at // width]
        sums.append(KernelSum(name, kind, precision, n, total_ns, shortest_ns, longest_ns, known_ns))
    return sums


def overlapped_ns(m: MeasuredProcess, chosen: NDArray[np.bool_], code_of: Callable[[I64], I64], size: int) -> I64:
    """(size,): per code the time of the chosen events beside work of the other class on their device: of communication
    beside compute, of all other events beside communication. code_of: of some rows, below `size`."""
    events, sums = m.view.events, np.zeros(size, np.int64)
    for device, rows in m.rows.items():
        sets = m.busy[device]
        for begin in range(rows.start, rows.stop, CHUNK):  # of millions of events few at a time
            part = slice(begin, min(begin + CHUNK, rows.stop))
            communicates = m.kinds.event_class[part] == COMMUNICATION
            for mine, other in ((communicates, sets.compute), (~communicates, sets.communication)):
                at = begin + np.flatnonzero(mine & chosen[part])
                np.add.at(sums, code_of(at), _within(other, events.start_ns[at], events.end_ns[at]))
    return sums


def _within(other: Intervals, start_ns: I64, end_ns: I64) -> I64:
    """`lengths_within` of the part of a set that these n stretches, sorted by start, can reach."""
    if len(start_ns) == 0:
        return np.zeros(0, np.int64)
    return lengths_within(clip(other, int(start_ns[0]), int(end_ns.max())), start_ns, end_ns)
