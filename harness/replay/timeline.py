"""One host's time as tiles: consecutive stretches, each of one sort and phase; and what lies between two moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.replay.sorts import SLOTS
from harness.traces.trace import I64

I16 = NDArray[np.int16]


class Amounts(NamedTuple):
    """Nanoseconds by arc and slot, as n triples; an arc's length is the sum of its own."""

    arc: I64
    slot: I16
    ns: I64


NO_AMOUNTS = Amounts(np.empty(0, np.int64), np.empty(0, np.int16), np.empty(0, np.int64))


def joined(parts: list[Amounts]) -> Amounts:
    """Several sets of triples as one."""
    return Amounts(*(np.concatenate(column) for column in zip(NO_AMOUNTS, *parts, strict=True)))


def from_table(arcs: I64, slots: list[int], table: I64) -> Amounts:
    """The amounts that are not 0 in a table of shape (arcs, slots)."""
    row, column = np.nonzero(table)
    return Amounts(arcs[row], np.array(slots, np.int16)[column], table[row, column])


@dataclass(frozen=True)
class Tiles:
    """n tiles of one host in time order: `edge` (n + 1) are their borders. `usual_ns`: the part of a tile that is not
    more than usual, of sort `slot`; the rest is of `excess`."""

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


def _up_to(before: I64, ratio: NDArray[np.float64], tile: I64, into: I64) -> I64:
    return before[tile] + np.rint(ratio[tile] * into).astype(np.int64)
