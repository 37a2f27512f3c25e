"""The collectives of many ranks as tables. Ranks that made the same calls in the same order share one block, so that a
hundred thousand ranks are a few arrays and no rank is looked at alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.collective_rows import I8, CollectiveKey, CollectiveRows
from harness.analysis.process.part import RankPart, collectives_of
from harness.traces.trace import I32, I64

Chosen = NDArray[np.bool_ | np.int64] | slice
_TABLES = ("bytes", "start_ns", "end_ns")


@dataclass(frozen=True)
class CollectiveBlock:
    """n collectives of r ranks in start order: `key` (n,) indexes `keys`; `rank` (r,) says which part each line is of.

    The other tables are (r, n); bytes and peer are -1 where not recorded.
    """

    keys: list[CollectiveKey]
    key: I32
    phase: I8  # (n,)
    row: I64  # (n,) the number among all of a rank's collectives
    rank: I64
    bytes: I64
    start_ns: I64
    end_ns: I64

    @property
    def shape(self) -> tuple[Any, ...]:
        """What the ranks of a block share."""
        return tuple(self.keys), self.key.tobytes(), self.phase.tobytes()

    def columns(self, chosen: Chosen) -> CollectiveBlock:
        """The chosen collectives of every rank, by slice, mask or index."""
        found: dict[str, Any] = {name: getattr(self, name)[chosen] for name in ("key", "phase", "row")}
        return replace(self, **found, **{name: getattr(self, name)[:, chosen] for name in _TABLES})

    def ranks(self, chosen: Chosen) -> CollectiveBlock:
        """Every collective of the chosen lines."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in ("rank", *_TABLES)})

    def inside(self, window_ns: I64) -> NDArray[np.bool_]:
        """(r, n): started inside the rank's window. window_ns: (2, parts), where the window of each part begins and
        ends, on its own clock."""
        begin, end = window_ns[:, self.rank, None]
        within: NDArray[np.bool_] = (self.start_ns >= begin) & (self.start_ns < end)
        return within


def blocks_of(parts: Sequence[RankPart]) -> list[CollectiveBlock]:
    """The collectives of parts, which are numbered by their place."""
    return joined(_alone(number, collectives_of(part)) for number, part in enumerate(parts))


def _alone(number: int, rows: CollectiveRows) -> CollectiveBlock:
    return CollectiveBlock(
        keys=rows.keys,
        key=rows.key,
        phase=rows.phase,
        row=rows.row,
        rank=np.array([number], np.int64),
        bytes=rows.bytes[None],
        start_ns=rows.start_ns[None],
        end_ns=rows.end_ns[None],
    )


def joined(blocks: Iterable[CollectiveBlock]) -> list[CollectiveBlock]:
    """One block of those whose ranks did the same, in the order of their first rank. Associative."""
    same: dict[Any, list[CollectiveBlock]] = {}
    for block in blocks:
        same.setdefault(block.shape, []).append(block)
    return sorted((_stacked(each) for each in same.values()), key=lambda block: int(block.rank[0]))


def _stacked(blocks: Sequence[CollectiveBlock]) -> CollectiveBlock:
    """The ranks of several blocks of one shape, in order."""
    found: dict[str, Any] = {
        name: np.concatenate([getattr(block, name) for block in blocks]) for name in ("rank", *_TABLES)
    }
    whole = replace(blocks[0], **found)
    return whole if (np.diff(whole.rank) > 0).all() else whole.ranks(np.argsort(whole.rank, kind="stable"))
