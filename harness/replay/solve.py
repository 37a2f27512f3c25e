"""The earliest moments that a graph's arcs allow, for many sets of arc lengths at once.

Nodes are taken in levels, so that a node's sources come before it; a level is one operation on columns. Knows no trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I64


class NoOrderError(ValueError):
    """The arcs run in a circle."""


@dataclass(frozen=True)
class Schedule:
    """Arcs sorted by the level of their target, then by target. `levels[i]`: first and last arc of a level; `first`: of
    each target's arcs the first one, counted from the level's first arc."""

    arcs: NDArray[np.intp]
    source: I64
    levels: list[tuple[int, int, NDArray[np.intp], I64]]  # from, to, first arc of each target, the targets


def schedule(nodes: int, source: I64, target: I64) -> Schedule:
    """The order in which to solve. Raises NoOrderError: the arcs run in a circle."""
    level = _levels(nodes, source, target)
    arcs = np.lexsort((target, level[target]))
    sorted_target, of_level = target[arcs], level[target][arcs]
    borders = np.flatnonzero(np.diff(of_level, prepend=-1, append=int(of_level.max(initial=0)) + 1)).tolist()
    levels = []
    for first, last in pairwise(borders):
        targets = sorted_target[first:last]
        begins = np.flatnonzero(np.diff(targets, prepend=-1))
        levels.append((first, last, begins, targets[begins]))
    return Schedule(arcs, source[arcs], levels)


def solve(plan: Schedule, roots: I64, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Moments of shape (v, n) for arc lengths of shape (v, k). roots: the moments of the n nodes, kept by nodes without
    arcs."""
    moments = np.repeat(roots[None, :], len(lengths), axis=0)
    sorted_lengths = lengths[:, plan.arcs]
    for first, last, begins, targets in plan.levels:
        reached = moments[:, plan.source[first:last]] + sorted_lengths[:, first:last]
        moments[:, targets] = np.maximum.reduceat(reached, begins, axis=1)
    return moments


def _levels(nodes: int, source: I64, target: I64) -> I64:
    """The length of the longest path to each node, in arcs."""
    by_source = np.argsort(source, kind="stable")
    first = np.searchsorted(source[by_source], np.arange(nodes + 1)).tolist()
    targets = target[by_source].tolist()
    missing = np.bincount(target, minlength=nodes).tolist()
    level = [0] * nodes
    ready = [node for node in range(nodes) if not missing[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        above = level[node] + 1
        for other in targets[first[node] : first[node + 1]]:
            level[other] = max(level[other], above)
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if done < nodes:
        raise NoOrderError(f"{nodes - done} of {nodes} moments wait for each other")
    return np.array(level, np.int64)
