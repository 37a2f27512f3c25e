"""Operators of a CPU trace, joined from the pieces that are its events. Must not know files or analyses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.traces.trace import I64, Activity, Events


@dataclass(frozen=True)
class Operators:
    """n operators in order of start: the event of the first piece, the whole span, the operator's own time."""

    first: I64
    start_ns: I64
    end_ns: I64
    own_ns: I64

    def __len__(self) -> int:
        return len(self.first)


def operators(events: Events, rows: I64) -> Operators:
    """The operators with pieces among `rows`, which are ascending indices of one process's events."""
    pieces = rows[events.activity[rows] == Activity.CPU_OP]
    correlation = events.correlation[pieces]
    free = int(correlation.max(initial=-1)) + 1  # a piece without a number is an operator of its own
    number = np.where(correlation >= 0, correlation, free + np.arange(len(pieces)))
    count = int(number.max(initial=-1)) + 1
    first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    first[number[::-1]] = pieces[::-1]
    last[number] = pieces  # no two operators cross on a thread, so a later piece never ends earlier
    own = np.zeros(count, np.int64)
    np.add.at(own, number, events.end_ns[pieces] - events.start_ns[pieces])
    found = np.flatnonzero(first >= 0)
    found = found[np.argsort(first[found])]
    first, last = first[found], last[found]
    return Operators(first, events.start_ns[first], events.end_ns[last], own[found])


def counted(events: Events, rows: I64) -> tuple[I64, I64]:
    """The rows that a table counts, with durations (ns): of an operator only the first piece, with its own time.

    The sum of the durations is the sum over all `rows`.
    """
    if not np.any(events.activity == Activity.CPU_OP):
        return rows, events.end_ns[rows] - events.start_ns[rows]
    others = rows[events.activity[rows] != Activity.CPU_OP]
    duration = events.end_ns[others] - events.start_ns[others]
    whole = operators(events, rows)
    both = np.concatenate([others, whole.first])
    order = np.argsort(both)
    return both[order], np.concatenate([duration, whole.own_ns])[order]
