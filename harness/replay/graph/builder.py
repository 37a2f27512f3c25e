"""A graph while it grows: its nodes and arcs, the host's segments, and the host's thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.replay.graph.graph import I16, SLOTS, Amounts
from harness.traces.trace import I64

NO_AMOUNTS = Amounts(np.empty(0, np.int64), np.empty(0, np.int16), np.empty(0, np.int64))


def joined(amounts: list[Amounts]) -> Amounts:
    """Several sets of triples as one."""
    return Amounts(*(np.concatenate(column) for column in zip(NO_AMOUNTS, *amounts, strict=True)))


def from_table(arcs: I64, slots: list[int], amounts: I64) -> Amounts:
    """The amounts that are not 0 in a table of shape (arcs, slots)."""
    row, column = np.nonzero(amounts)
    return Amounts(arcs[row], np.array(slots, np.int16)[column], amounts[row, column])


def column(parts: list[I64]) -> I64:
    """Several columns as one."""
    return np.concatenate([np.empty(0, np.int64), *parts])


@dataclass(frozen=True)
class HostSegments:
    """n segments of one host in time order: `edge` (n + 1) are their borders. `usual_ns`: the part of a segment that is
    not more than usual, of category `slot`; the rest is of `excess`."""

    edge: I64
    slot: I16
    usual_ns: I64
    excess: I16

    def between(self, start_ns: I64, end_ns: I64, arcs: I64) -> Amounts:
        """Amounts of the m stretches from `start_ns` to `end_ns`, one per arc. What is before the first or after the
        last tile belongs to the nearest tile."""
        slots = [*np.flatnonzero(np.bincount(np.concatenate([self.slot, self.excess]), minlength=SLOTS))]
        table = np.empty((len(arcs), len(slots)), np.int64)
        first, last = self._places(start_ns), self._places(end_ns)
        for column, wanted in enumerate(slots):
            own = np.where(self.slot == wanted, self.usual_ns, 0)
            own += np.where(self.excess == wanted, np.diff(self.edge) - self.usual_ns, 0)
            before = np.concatenate([[0], np.cumsum(own)])
            ratio = own / np.maximum(np.diff(self.edge), 1)
            table[:, column] = _up_to(before, ratio, *last) - _up_to(before, ratio, *first)
        if slots:
            table[:, 0] += (end_ns - start_ns) - table.sum(axis=1)  # what rounding left, or what lies outside
        return from_table(arcs, [int(s) for s in slots], table)

    def _places(self, time_ns: I64) -> tuple[I64, I64]:
        """The tile of each moment, and how far in it the moment lies."""
        inside = np.clip(time_ns, self.edge[0], self.edge[-1])
        tile = np.clip(np.searchsorted(self.edge, inside, side="right") - 1, 0, len(self.slot) - 1)
        return tile, inside - self.edge[tile]


def _up_to(lengths_before: I64, ratio: NDArray[np.float64], tile: I64, into: I64) -> I64:
    return lengths_before[tile] + np.rint(ratio[tile] * into).astype(np.int64)


@dataclass
class Builder:
    """A graph that grows by whole columns. Nodes and arcs are numbered from 0."""

    times: list[I64] = field(default_factory=list)
    source: list[I64] = field(default_factory=list)
    target: list[I64] = field(default_factory=list)
    amounts: list[Amounts] = field(default_factory=list)
    activities: list[Amounts] = field(default_factory=list)
    repeated: list[I64] = field(default_factory=list)
    waits: list[I64] = field(default_factory=list)
    syncs: list[I64] = field(default_factory=list)
    nodes: int = 0
    arcs: int = 0

    def add_nodes(self, time_ns: I64) -> I64:
        """The numbers of n new nodes, measured at these moments."""
        first, self.nodes = self.nodes, self.nodes + len(time_ns)
        self.times.append(time_ns)
        return np.arange(first, self.nodes)

    def add_arcs(self, source: I64, target: I64) -> I64:
        """The numbers of n new arcs, whose lengths are the sums of their amounts."""
        first, self.arcs = self.arcs, self.arcs + len(source)
        self.source.append(source)
        self.target.append(target)
        return np.arange(first, self.arcs)

    def give_activities(self, amounts: Amounts) -> None:
        """Which part of arcs' time are activities of the host in idle time of the device, in the slots 1 + activity."""
        kept = amounts.slot > 0
        self.activities.append(Amounts(amounts.arc[kept], amounts.slot[kept] - np.int16(1), amounts.ns[kept]))

    def give_slot(self, arcs: I64, slot: int, ns: I64) -> None:
        """Lengthen n arcs, each by its own time, in one slot."""
        kept = ns != 0
        self.amounts.append(Amounts(arcs[kept], np.full(int(kept.sum()), slot, np.int16), ns[kept]))

    @property
    def time_ns(self) -> I64:
        """Every node's measured moment."""
        return column(self.times)

    def columns(self) -> dict[str, Any]:
        """The columns of a `Graph`."""
        rows = {name: column(getattr(self, name)) for name in ("source", "target", "repeated", "waits", "syncs")}
        amounts = {"amounts": joined(self.amounts), "activity_amounts": joined(self.activities)}
        return rows | amounts | {"time_ns": self.time_ns}


@dataclass
class HostThread:
    """Collects nodes of the host; `close` joins them. Launches are looked up between nodes."""

    segments: HostSegments
    activities: HostSegments
    node: list[I64] = field(default_factory=list)
    time: list[I64] = field(default_factory=list)
    since: list[I64] = field(default_factory=list)  # from when the host waited; the node's moment without waiting

    def mark(self, builder: Builder, time_ns: I64, since_ns: I64 | None = None) -> I64:
        """n new nodes of the host at these moments. since_ns: it waited from here on."""
        nodes = builder.add_nodes(time_ns)
        self.node.append(nodes)
        self.time.append(time_ns)
        self.since.append(time_ns if since_ns is None else since_ns)
        return nodes

    def ordered(self) -> tuple[I64, I64, I64]:
        """Node, moment and beginning of waiting of all nodes so far, in order of time. At one moment, the end of
        waiting comes first."""
        node, time, since = map(column, (self.node, self.time, self.since))
        order = np.lexsort((since >= time, time))
        return node[order], time[order], since[order]

    def close(self, builder: Builder) -> None:
        """The arcs between consecutive nodes."""
        node, time, since = self.ordered()
        if len(node) < 2:
            return
        arcs = builder.add_arcs(node[:-1], node[1:])
        until = np.clip(since[1:], time[:-1], time[1:])
        self.give(builder, time[:-1], until, arcs)

    def give(self, builder: Builder, start_ns: I64, end_ns: I64, arcs: I64) -> None:
        """Lengthen arcs by what the host did from `start_ns` to `end_ns`."""
        builder.amounts.append(self.segments.between(start_ns, end_ns, arcs))
        builder.give_activities(self.activities.between(start_ns, end_ns, arcs))
