"""The host's own nodes in order of time, joined by what the host did between them.

At a node where the host waited, the stretch that it waited is not the host's time: the node is as late as what it
waited for, and the host's arc ends where the waiting began."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harness.replay.build import Builder
from harness.replay.timeline import Tiles
from harness.traces.trace import I64


@dataclass
class HostLane:
    """Collects nodes of the host; `close` joins them. Launches are looked up between nodes."""

    tiles: Tiles
    node: list[I64] = field(default_factory=list)
    time: list[I64] = field(default_factory=list)
    since: list[I64] = field(
        default_factory=list
    )  # from when the host waited; the node's moment without waiting

    def mark(self, builder: Builder, time_ns: I64, since_ns: I64 | None = None) -> I64:
        """n new nodes of the host at these moments. since_ns: it waited from here on."""
        nodes = builder.add_nodes(time_ns)
        self.node.append(nodes)
        self.time.append(time_ns)
        self.since.append(time_ns if since_ns is None else since_ns)
        return nodes

    def ordered(self) -> tuple[I64, I64, I64]:
        """Node, moment and beginning of waiting of all nodes so far, in order of time.

        At one moment, the end of waiting comes first."""
        node, time, since = (
            np.concatenate([np.empty(0, np.int64), *c]) for c in (self.node, self.time, self.since)
        )
        order = np.lexsort((since >= time, time))
        return node[order], time[order], since[order]

    def close(self, builder: Builder) -> None:
        """The arcs between consecutive nodes."""
        node, time, since = self.ordered()
        if len(node) < 2:
            return
        arcs = builder.add_arcs(node[:-1], node[1:])
        until = np.clip(since[1:], time[:-1], time[1:])
        builder.give(self.tiles.between(time[:-1], until, arcs))

    @property
    def last(self) -> I64:
        """The last node, as an array of length one; empty without nodes."""
        return self.ordered()[0][-1:]
