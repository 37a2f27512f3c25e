"""The collectives of one rank as rows. Knows one process at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.idle import COMMUNICATION
from harness.analysis.process.intervals import EMPTY, Intervals, RangeTree
from harness.analysis.process.kinds import Kinds
from harness.analysis.process.phases import phase_of_moments, phases
from harness.analysis.process.view import ProcessView
from harness.traces.columns import distinct_columns
from harness.traces.trace import I32, I64, Activity
from harness.traces.vocabulary import collective_kind

I8 = NDArray[np.int8]


@dataclass(frozen=True)
class CollectiveKey:
    """What makes two collectives comparable."""

    kind: str
    group: str | None
    group_size: int | None
    dtype: str | None
    ranks: tuple[int, ...] | None = None  # the group's global ranks, where recorded


@dataclass(frozen=True)
class CollectiveRows:
    """n collectives of one rank in start order: `key` indexes `keys`; bytes and the peer of a send or receive are -1
    where not recorded."""

    keys: list[CollectiveKey]
    key: I32
    bytes: I64
    start_ns: I64
    end_ns: I64
    phase: I8  # phases.Phase
    row: I64  # its number among all of the rank's collectives
    peer: I32

    def at(self, chosen: slice | NDArray[np.bool_ | np.int64]) -> CollectiveRows:
        """The chosen rows, by slice, mask or index."""
        key, size, phase = self.key[chosen], self.bytes[chosen], self.phase[chosen]
        start, end = self.start_ns[chosen], self.end_ns[chosen]
        return CollectiveRows(self.keys, key, size, start, end, phase, self.row[chosen], self.peer[chosen])


def rows(
    view: ProcessView, kinds: Kinds, ranges: tuple[RangeTree, I64] | None = None, between: Intervals = EMPTY
) -> CollectiveRows:
    """All collectives of a process: collectives with arguments, and device spans of communication without arguments.

    `ranges`: their nesting and the owner of each event, from which the phases come; without them every phase is 0.
    `between`: the time between the marks of the steps."""
    recorded, events = view.collectives, view.events
    bare_at = _without_arguments(view, kinds)
    keys: dict[CollectiveKey, int] = {}
    key = np.concatenate([_recorded_keys(view, keys), _bare_keys(view, bare_at, keys)]).astype(np.int32)
    size, peer = (
        np.concatenate([column, np.full(len(bare_at), -1, column.dtype)]) for column in (recorded.bytes, recorded.peer)
    )
    start = np.concatenate([recorded.start_ns, events.start_ns[bare_at]])
    end = np.concatenate([recorded.end_ns, events.end_ns[bare_at]])
    order = np.argsort(start, kind="stable")
    event = np.concatenate([recorded.event, bare_at])[order]
    phase = np.zeros(len(order), np.int8)
    if ranges is not None:
        launch = np.where(event >= 0, np.append(events.launch_ns, -1)[event], -1)
        moment = np.where(launch >= 0, launch, start[order])
        of_range = phases(view.ranges, view.names, ranges[0])
        phase = phase_of_moments(launchers(*ranges, event, start[order]), of_range, moment, between)
    row = np.arange(len(order))
    return CollectiveRows(list(keys), key[order], size[order], start[order], end[order], phase, row, peer[order])


def row_events(view: ProcessView, kinds: Kinds) -> I64:
    """The event of each row of `rows`, in its order; -1: the device side was not recorded."""
    bare_at = _without_arguments(view, kinds)
    start = np.concatenate([view.collectives.start_ns, view.events.start_ns[bare_at]])
    event = np.concatenate([view.collectives.event, bare_at])
    return event[np.argsort(start, kind="stable")]


def launchers(nesting: RangeTree, owner: I64, event: I64, start_ns: I64) -> I64:
    """The range that launched each collective, which is this event and began then; without a recorded launch, the main
    thread's range at its begin; -1 without a range. owner: of each event."""
    by_launch = np.where(event >= 0, np.append(owner, -1)[event], -1)
    if nesting.main is not None:
        by_launch = np.where(by_launch >= 0, by_launch, nesting.main.of(start_ns))
    return by_launch


def _without_arguments(view: ProcessView, kinds: Kinds) -> I64:
    """Events that communicate and have no message of their own."""
    recorded = view.collectives
    bare = (kinds.event_class == COMMUNICATION) & (view.events.activity != Activity.MEMCPY)
    bare[recorded.event[recorded.event >= 0]] = False
    return np.flatnonzero(bare)


def _recorded_keys(view: ProcessView, keys: dict[CollectiveKey, int]) -> I64:
    recorded, names = view.collectives, view.names
    found, which = distinct_columns((recorded.kind, recorded.group, recorded.group_size, recorded.dtype))
    code = np.empty(found.shape[1], np.int64)
    for i, (kind, group, size, dtype) in enumerate(found.T.tolist()):
        name = names[group] if group >= 0 else None
        members = view.trace.groups.get(name) if name is not None else None
        known_size = size if size > 0 else len(members) if members else None
        key = CollectiveKey(
            names[kind] if kind >= 0 else "unknown",
            name,
            known_size,
            names[dtype] if dtype >= 0 else None,
            tuple(members) if members else None,
        )
        code[i] = keys.setdefault(key, len(keys))
    return code[which]


def _bare_keys(view: ProcessView, at: I64, keys: dict[CollectiveKey, int]) -> I64:
    name = view.events.name[at]
    distinct, inverse = np.unique(name, return_inverse=True)
    code = np.empty(len(distinct), np.int64)
    for i, n in enumerate(distinct.tolist()):
        kind = collective_kind(view.names[n]) or "unknown"
        code[i] = keys.setdefault(CollectiveKey(kind, None, None, None), len(keys))
    return code[inverse]
