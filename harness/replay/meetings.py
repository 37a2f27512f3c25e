"""Where the ranks of a job wait for each other: a collective is done after its last rank arrived, and its transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.matching import MatchedGroup
from harness.analysis.process.collective_rows import CollectiveRows
from harness.analysis.process.part import RankPart, unpack_rows
from harness.replay.recurrence import median_of_each
from harness.replay.sorts import Sort, slot
from harness.replay.timeline import Amounts, joined
from harness.traces.trace import I64
from harness.traces.vocabulary import POINT_TO_POINT

EARLY_NS = (
    100_000  # by how much clocks and spans may be wrong before "done before the last arrived" is believed
)
TOGETHER_NS = 500_000  # ends of one collective on two processes
_IMPOSSIBLE = 0.1  # of the receives may end before their send begins: a record may be late
WAITED_NS = 300_000  # a shorter collective may be one process's own
_HELD_FACTOR = 2  # a transfer of so many times the usual one was held up, if it is also a stall
Process = tuple[str, int | None]  # its trace and its pid


class Nodes(NamedTuple):
    """A process and the nodes where each row of its collectives arrives and is done, -1: not in its graph."""

    process: Process
    arrive: I64
    done: I64


class Messages(NamedTuple):
    """One row per rank's part in a collective that was joined: its arc of transfer, its size and time, and its call, an
    index into `Meetings.calls`."""

    arc: I64
    bytes: I64
    ns: I64
    call: I64


class Call(NamedTuple):
    """A kind of collective, and the phase of training (an index into PHASES) that issues it."""

    kind: str
    phase: int


class _Shared(NamedTuple):
    """n collectives of r ranks: their places among the processes, each one's rows (r, n), the sizes and calls (n)."""

    places: list[int]
    rows: I64
    bytes: I64
    calls: list[Call]


@dataclass
class Meetings:
    """The nodes and arcs between processes, as columns that grow."""

    time: I64
    nodes: int
    arcs: int
    times: list[I64] = field(default_factory=list)
    source: list[I64] = field(default_factory=list)
    target: list[I64] = field(default_factory=list)
    process: list[I64] = field(default_factory=list)
    amounts: list[Amounts] = field(default_factory=list)
    found: list[Messages] = field(default_factory=list)
    alone_count: int = 0
    calls: list[Call] = field(default_factory=list)

    def join(self, shared: _Shared, arrive: I64, done: I64) -> None:
        """Collectives with nodes (r, n) of r processes. One that lies outside a rank's window is not joined."""
        places = shared.places
        whole = (arrive >= 0).all(axis=0)
        for place, own, end in zip(places, arrive, done, strict=True):
            kept = ~whole & (own >= 0)
            self.alone(place, own[kept], end[kept])
        arrive, done, size = arrive[:, whole], done[:, whole], shared.bytes[whole]
        call = self._numbers(shared.calls)[whole]
        last = self.time[arrive].max(axis=0, initial=0)
        hub = np.arange(self.nodes, self.nodes + len(last))
        self.nodes += len(hub)
        self.times.append(last)
        for place, own, end in zip(places, arrive, done, strict=True):
            transfer = self.time[end] - last
            waits = transfer >= -EARLY_NS
            self._add(place, own, hub, np.zeros(len(hub), np.int64))
            ns = np.maximum(transfer[waits], 0)
            arcs = self._add(place, hub[waits], end[waits], ns)
            self.found.append(Messages(arcs, size[waits], ns, call[waits]))
            self.alone(place, own[~waits], end[~waits])

    def alone(self, place: int, arrive: I64, done: I64) -> None:
        """Collectives of one process that wait for nobody that is known."""
        self.alone_count += len(arrive)
        self._add(place, arrive, done, self.time[done] - self.time[arrive])

    def messages(self) -> Messages:
        """All that were joined."""
        none = Messages(*(np.empty(0, np.int64),) * 4)
        return Messages(*(np.concatenate(column) for column in zip(none, *self.found, strict=True)))

    def held_up(self, least: int) -> Amounts:
        """Moves what a transfer took beyond the usual of its call and size to TRANSFER_HELD, if it is a stall."""
        found = self.messages()
        alike = np.unique(np.stack([found.call, found.bytes]), axis=1, return_inverse=True)[1].reshape(-1)
        usual = median_of_each(alike, found.ns)
        held = (found.ns > _HELD_FACTOR * usual) & (found.ns - usual > least)
        arcs, ns = found.arc[held], (found.ns - usual)[held]
        less, more = (
            np.full(len(arcs), slot(sort), np.int16) for sort in (Sort.TRANSFER, Sort.TRANSFER_HELD)
        )
        return joined([Amounts(arcs, less, -ns), Amounts(arcs, more, ns)])

    def _numbers(self, calls: list[Call]) -> I64:
        """Each call's index; new ones are added."""
        self.calls += [call for call in dict.fromkeys(calls) if call not in self.calls]
        index = {call: i for i, call in enumerate(self.calls)}
        return np.array([index[call] for call in calls], np.int64)

    def _add(self, place: int, source: I64, target: I64, ns: I64) -> I64:
        arcs = np.arange(self.arcs, self.arcs + len(source))
        self.arcs += len(source)
        self.source.append(source)
        self.target.append(target)
        self.process.append(np.full(len(source), place))
        kept = ns != 0
        of = np.full(int(kept.sum()), slot(Sort.TRANSFER), np.int16)
        self.amounts.append(Amounts(arcs[kept], of, ns[kept]))
        return arcs


def join_messages(
    time: I64, arcs: int, nodes: Sequence[Nodes], matched: Sequence[MatchedGroup], parts: Sequence[RankPart]
) -> Meetings:
    """The meetings of processes whose nodes are at `time`; new nodes and arcs are numbered after theirs."""
    meetings = Meetings(time, len(time), arcs)
    place = {own.process: i for i, own in enumerate(nodes)}
    free = [own.arrive >= 0 for own in nodes]
    for shared in [*_groups(matched, place), *_pairs(time, nodes, parts, place)]:
        of = list(zip(shared.places, shared.rows, strict=True))
        arrive = np.stack([nodes[i].arrive[rows] for i, rows in of])
        meetings.join(shared, arrive, np.stack([nodes[i].done[rows] for i, rows in of]))
        for i, rows in of:
            free[i][rows] = False
    for shared in _by_ends(time, nodes, parts, place, free):
        (a, b), (own, other) = shared.places, shared.rows
        arrive, done = (
            np.stack([getattr(nodes[a], n)[own], getattr(nodes[b], n)[other]]) for n in ("arrive", "done")
        )
        meetings.join(shared, arrive, done)
        free[a][own] = free[b][other] = False
    for i, mask in enumerate(free):
        meetings.alone(i, nodes[i].arrive[mask], nodes[i].done[mask])
    return meetings


def _groups(matched: Sequence[MatchedGroup], place: dict[Process, int]) -> Iterator[_Shared]:
    """Groups whose ranks all have a graph."""
    for m in matched:
        members = [place.get((part.source.path, part.source.pid), -1) for part in m.parts]
        if min(members) >= 0:
            kinds = [m.keys[key].kind for key in m.key]
            yield _Shared(members, m.row, m.bytes, list(map(Call, kinds, m.phase.tolist())))


def _pairs(
    time: I64, nodes: Sequence[Nodes], parts: Sequence[RankPart], place: dict[Process, int]
) -> Iterator[_Shared]:
    """Sends and receives: the k-th send of one process is the k-th receive of another.

    A record does not name the other one. Of two processes it is known; of more it is the one whose receives do not end
    before the sends begin, and end soonest after both began."""
    of_all: list[tuple[int, CollectiveRows, list[I64]]] = []
    for part in parts:
        if _process(part) in place:
            rows = unpack_rows(part.collectives)
            kinds = np.array([*(key.kind for key in rows.keys), ""])[rows.key]
            of_all.append((place[_process(part)], rows, [np.flatnonzero(kinds == k) for k in POINT_TO_POINT]))
    of_all = [of for of in of_all if any(len(rows) for rows in of[2])]
    possible = [
        (after, i, j)
        for i, (a, _, (sends, *_)) in enumerate(of_all)
        for j, (b, _, (_, receives, *_)) in enumerate(of_all)
        if i != j and 0 < len(sends) == len(receives)
        if (after := done_after(time, nodes[a], sends, nodes[b], receives)) is not None or len(of_all) == 2
    ]
    senders, receivers = set[int](), set[int]()
    for _, i, j in sorted(possible, key=lambda found: found[0] or 0):
        if i not in senders and j not in receivers:
            senders.add(i)
            receivers.add(j)
            (a, rows, (sends, *_)), (b, _, (_, receives, *_)) = of_all[i], of_all[j]
            calls = [Call("send", int(phase)) for phase in rows.phase[sends]]
            yield _Shared([a, b], np.stack([sends, receives]), rows.bytes[sends], calls)


def done_after(time: I64, own: Nodes, sends: I64, other: Nodes, receives: I64) -> float | None:
    """How long after both began receives usually end, in ns; None where too many end before their send begins."""
    inside = (own.arrive[sends] >= 0) & (other.arrive[receives] >= 0)
    begin, meant = time[own.arrive[sends[inside]]], time[other.arrive[receives[inside]]]
    end = time[other.done[receives[inside]]]
    if not len(end) or np.count_nonzero(end < begin - EARLY_NS) > _IMPOSSIBLE * len(end):
        return None
    return float(np.median(np.maximum(end - np.maximum(begin, meant), 0)))


def _by_ends(
    time: I64,
    nodes: Sequence[Nodes],
    parts: Sequence[RankPart],
    place: dict[Process, int],
    free: Sequence[NDArray[np.bool_]],
) -> Iterator[_Shared]:
    """What is left of two processes and was waited for: collectives of one kind and size that ended together.

    The record has no group for them, and other groups' collectives of the same kind lie between."""
    tables = {place[key]: unpack_rows(p.collectives) for p in parts if (key := _process(p)) in place}
    if len(nodes) != 2 or len(tables) != 2:
        return
    left = [np.flatnonzero(mask) for mask in free]
    ends = [time[nodes[i].done[rows]] for i, rows in enumerate(left)]
    if not len(left[0]) or not len(left[1]):
        return
    nearest = np.clip(np.searchsorted(ends[1], ends[0]), 1, max(len(ends[1]) - 1, 1))
    nearest = np.minimum(nearest, len(ends[1]) - 1)
    before = np.maximum(nearest - 1, 0)
    nearest = np.where(
        np.abs(ends[1][before] - ends[0]) < np.abs(ends[1][nearest] - ends[0]), before, nearest
    )
    own, other = left[0], left[1][nearest]
    long = np.maximum(ends[0] - time[nodes[0].arrive[own]], ends[1][nearest] - time[nodes[1].arrive[other]])
    good = (np.abs(ends[1][nearest] - ends[0]) <= TOGETHER_NS) & (long >= WAITED_NS)
    good &= _alike(tables[0], own) == _alike(tables[1], other)
    _, first = np.unique(other, return_index=True)
    once = np.zeros(len(other), np.bool_)
    once[first] = True
    own, other = own[good & once], other[good & once]
    if len(own):
        rows = tables[0]
        calls = [Call(rows.keys[k].kind, int(p)) for k, p in zip(rows.key[own], rows.phase[own], strict=True)]
        yield _Shared([0, 1], np.stack([own, other]), rows.bytes[own], calls)


def _alike(rows: CollectiveRows, chosen: I64) -> NDArray[np.str_]:
    """Kind and size of each row, as texts to compare between processes."""
    kinds = np.array([key.kind for key in rows.keys])
    return np.char.add(np.char.add(kinds[rows.key[chosen]], " "), rows.bytes[chosen].astype(str))


def _process(part: RankPart) -> Process:
    return part.source.path, part.source.pid
