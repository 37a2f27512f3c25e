"""Where a device's time went: compute, communication, memory, idle, as lengths of unions.

Definitions: DESIGN.md "What the numbers mean", repeated with formulas in docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.intervals import (
    Intervals,
    clip,
    complement,
    intersection,
    length,
    lengths_within,
    union,
)
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
    inside = {
        name: length(clip(getattr(sets, name), start_ns, end_ns))
        for name in ("compute", "communication", "memory", "overlap", "working", "any")
    }
    return _as_split(end_ns - start_ns, inside)


def split_windows(sets: Busy, start_ns: I64, end_ns: I64) -> list[TimeSplit]:
    """The split of each of m windows."""
    inside = {
        name: lengths_within(getattr(sets, name), start_ns, end_ns)
        for name in ("compute", "communication", "memory", "overlap", "working", "any")
    }
    return [
        _as_split(int(end_ns[i] - start_ns[i]), {name: int(values[i]) for name, values in inside.items()})
        for i in range(len(start_ns))
    ]


def _as_split(window_ns: int, inside: dict[str, int]) -> TimeSplit:
    return TimeSplit(
        window_ns=window_ns,
        compute_ns=inside["compute"],
        communication_ns=inside["communication"],
        exposed_communication_ns=inside["communication"] - inside["overlap"],
        overlapped_communication_ns=inside["overlap"],
        memory_ns=inside["memory"],
        exposed_memory_ns=inside["any"] - inside["working"],
        idle_ns=window_ns - inside["any"],
    )


def idle_sets(sets: Busy, start_ns: int, end_ns: int) -> Intervals:
    """The stretches of the window in which the device did nothing."""
    return complement(sets.any, start_ns, end_ns)


def extent(start_ns: I64, end_ns: I64) -> tuple[int, int]:
    """First start and last end of n > 0 events."""
    return int(start_ns.min()), int(np.max(end_ns))
