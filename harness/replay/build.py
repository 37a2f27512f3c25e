"""Nodes and arcs of one process's graph while it is built.

A node is a moment; an arc says how long after one moment the other can be at the earliest. A node's moment is the
latest that its arcs allow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harness.replay.timeline import NO_AMOUNTS, Amounts, joined
from harness.traces.trace import I64


@dataclass
class Builder:
    """Grows by whole columns. Nodes and arcs are numbered from 0."""

    times: list[I64] = field(default_factory=list)
    source: list[I64] = field(default_factory=list)
    target: list[I64] = field(default_factory=list)
    amounts: list[Amounts] = field(default_factory=list)
    repeated: list[I64] = field(default_factory=list)
    nodes: int = 0
    arcs: int = 0

    def add_nodes(self, time_ns: I64) -> I64:
        """The numbers of n new nodes, measured at these moments."""
        first, self.nodes = self.nodes, self.nodes + len(time_ns)
        self.times.append(time_ns)
        return np.arange(first, self.nodes)

    def add_arcs(self, source: I64, target: I64) -> I64:
        """The numbers of n new arcs, whose lengths are given by `give`."""
        first, self.arcs = self.arcs, self.arcs + len(source)
        self.source.append(source)
        self.target.append(target)
        return np.arange(first, self.arcs)

    def repeat(self, arcs: I64) -> None:
        """These arcs' time is also that of other arcs: it must not be added up."""
        self.repeated.append(arcs)

    def give(self, amounts: Amounts) -> None:
        """Lengthen arcs."""
        self.amounts.append(amounts)

    def give_slot(self, arcs: I64, slot: int, ns: I64) -> None:
        """Lengthen n arcs, each by its own time, in one slot."""
        kept = ns != 0
        self.give(Amounts(arcs[kept], np.full(int(kept.sum()), slot, np.int16), ns[kept]))

    @property
    def time_ns(self) -> I64:
        """Every node's measured moment."""
        return np.concatenate([np.empty(0, np.int64), *self.times])

    def all_arcs(self) -> tuple[I64, I64, Amounts]:
        """Source, target and amounts of every arc."""
        empty = np.empty(0, np.int64)
        amounts = joined(self.amounts) if self.amounts else NO_AMOUNTS
        return np.concatenate([empty, *self.source]), np.concatenate([empty, *self.target]), amounts
