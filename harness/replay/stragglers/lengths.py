"""The time that each operation takes for itself, and the ideal one of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.replay.stragglers.graph import StepGraph
from harness.traces.operations.timeline import Operations
from harness.traces.operations.vocabulary import BY_MEAN
from harness.traces.trace import F64, I64

_MOST_EARLY_NS = (
    10_000_000  # a communication that seems to end so long before its last member begins took no time
)


@dataclass(frozen=True)
class Lengths:
    """Of each operation of a timeline (length n): own_ns, its duration, or of a communication the time from the start
    of its last member to its own end; ideal_ns, of its kind over the whole job: the mean of what computes, the median
    of what communicates. used: those of the replayed steps."""

    own_ns: I64
    ideal_ns: I64
    used: NDArray[np.bool_]


def lengths_of(ops: Operations, graphs: Sequence[StepGraph]) -> Lengths:
    """The lengths of a job's operations, over the steps of its graphs."""
    own = ops.end_ns - ops.start_ns
    used = np.zeros(len(ops), bool)
    for graph in graphs:
        used[graph.rows[:, graph.replayed].ravel()] = True
        own[graph.rows] = _transfers(ops, graph)
    ideal = np.zeros(len(ops), np.int64)
    for kind, role in enumerate(ops.roles):
        mine = (ops.kind == kind) & used
        if mine.any():
            ideal[ops.kind == kind] = round(
                float(np.mean(own[mine]) if role in BY_MEAN else np.median(own[mine]))
            )
    return Lengths(own, ideal, used)


def _transfers(ops: Operations, graph: StepGraph) -> I64:
    """Shape (steps, n): each operation's own time, without the waiting for the other members of its group."""
    start, end = ops.start_ns[graph.rows], ops.end_ns[graph.rows]
    member = np.flatnonzero(graph.group >= 0)
    if not len(member):
        return end - start
    order = member[np.argsort(graph.group[member], kind="stable")]
    begins = np.flatnonzero(np.diff(graph.group[order], prepend=-1))
    last = np.maximum.reduceat(start[:, order], begins, axis=1)
    sizes = np.diff(np.append(begins, len(order)))
    own = end - start
    transfer = end[:, order] - np.repeat(last, sizes, axis=1)
    own[:, order] = np.where(transfer <= -_MOST_EARLY_NS, 0, transfer)
    return own


def means_of(values: I64, group: I64) -> F64:
    """Of each value the mean of its group."""
    total = np.bincount(group, values.astype(np.float64))
    found: F64 = (total / np.maximum(np.bincount(group), 1))[group]
    return found
