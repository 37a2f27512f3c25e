"""Where a device's time went: compute, communication, memory, idle, as lengths of unions.

Definitions: DESIGN.md "What the numbers mean", repeated with formulas in docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.intervals import Intervals, intersection, lengths_within, union
from harness.analysis.summary import TimeSplit
from harness.traces.trace import I64, U8

COMPUTE, COMMUNICATION, MEMORY, NOT_WORK = 0, 1, 2, 3  # the class of an event; see kinds.py


@dataclass(frozen=True, slots=True)
class Busy:
    """One device's time as sets of intervals. `any` is their union, `overlap` communication ∩ compute."""

    compute: Intervals
    communication: Intervals
    memory: Intervals
    overlap: Intervals
    working: Intervals  # compute ∪ communication
    any: Intervals


def busy(start_ns: I64, end_ns: I64, event_class: U8) -> Busy:
    """The sets of one device's n events; `event_class` is one of the four constants above."""

    def of(chosen: NDArray[np.bool_]) -> Intervals:
        return union(start_ns[chosen], end_ns[chosen])  # events come sorted: cheaper than merging unions

    compute, communication = of(event_class == COMPUTE), of(event_class == COMMUNICATION)
    return Busy(
        compute,
        communication,
        of(event_class == MEMORY),
        intersection(communication, compute),
        of(event_class <= COMMUNICATION),
        of(event_class != NOT_WORK),
    )


def split_window(sets: Busy, start_ns: int, end_ns: int) -> TimeSplit:
    """The split of the window [start_ns, end_ns)."""
    return split_windows(sets, np.array([start_ns]), np.array([end_ns]))[0]


def split_windows(sets: Busy, start_ns: I64, end_ns: I64) -> list[TimeSplit]:
    """The split of each of m windows."""
    inside = (
        lengths_within(of, start_ns, end_ns).tolist()
        for of in (sets.compute, sets.communication, sets.memory, sets.overlap, sets.working, sets.any)
    )
    return [
        TimeSplit(
            window_ns=window,
            compute_ns=compute,
            communication_ns=communication,
            exposed_communication_ns=communication - overlap,
            overlapped_communication_ns=overlap,
            memory_ns=memory,
            exposed_memory_ns=any_work - working,
            idle_ns=window - any_work,
        )
        for window, compute, communication, memory, overlap, working, any_work in zip(
            (end_ns - start_ns).tolist(), *inside, strict=True
        )
    ]
