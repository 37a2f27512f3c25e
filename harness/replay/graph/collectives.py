"""Where the ranks of a job wait for each other: a collective is done after its last rank arrived, and its transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.matching import MatchedGroup
from harness.analysis.process.collective_rows import CollectiveRows
from harness.analysis.process.part import RankPart, collectives_of
from harness.replay.graph.builder import Builder, column, joined
from harness.replay.graph.graph import Amounts, Call, Messages, TimeCategory, slot
from harness.replay.graph.host import held_up, median_of_each
from harness.traces.trace import I64
from harness.traces.vocabulary import POINT_TO_POINT

EARLY_NS = 100_000  # by how much clocks and spans may be wrong before "done before the last arrived" is believed
EARLY = 0.1  # the same, of the time that a process waited for it
TOGETHER_NS = 500_000  # ends of one collective on two processes
_TOGETHER = 0.02  # the same, of the time that one of them waited for it
_IMPOSSIBLE = 0.1  # of the receives may end before their send begins: a record may be late
_SOONER = 0.5  # of the time in which receives end, from which the second send is rather that of the first receive
WAITED_NS = 300_000  # a shorter collective may be one process's own
Process = tuple[str, int | None]  # its trace and its pid


class CollectiveNodes(NamedTuple):
    """A process and the nodes where each row of its collectives arrives and is done, -1: not in its graph."""

    process: Process
    arrive: I64
    done: I64


class MatchedCollectives(NamedTuple):
    """n collectives of r ranks: their places among the processes, each one's rows (r, n), the sizes and calls (n).
    whole: no other rank takes part."""

    places: list[int]
    rows: I64
    bytes: I64
    calls: list[Call]
    whole: bool = True


@dataclass
class CollectiveSync(Builder):
    """The nodes and arcs of all processes, and then those between them. process: of each arc. early: as EARLY. unknown:
    arcs of collectives in which ranks wait that are not known; alone_count: how many have no other rank at all."""

    early: float = EARLY
    process: list[I64] = field(default_factory=list)
    matched: list[Messages] = field(default_factory=list)
    unknown: list[I64] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    alone_count: int = 0

    @cached_property
    def time(self) -> I64:
        """Every moment of the processes, when all of them are there and nothing is joined."""
        return self.time_ns

    def join(self, shared: MatchedCollectives, arrive: I64, done: I64) -> None:
        """Collectives with nodes (r, n) of r processes. One that lies outside a rank's window is not joined."""
        places = shared.places
        whole = (arrive >= 0).all(axis=0)
        for place, own, end in zip(places, arrive, done, strict=True):
            kept = ~whole & (own >= 0)
            self.alone(place, own[kept], end[kept])
        arrive, done, size = arrive[:, whole], done[:, whole], shared.bytes[whole]
        call = self._numbers(shared.calls)[whole]
        last = self.time[arrive].max(axis=0, initial=0)
        hub = self.add_nodes(last)
        for place, own, end in zip(places, arrive, done, strict=True):
            transfer = self.time[end] - last
            waits = transfer >= -np.maximum(EARLY_NS, self.early * (self.time[end] - self.time[own]))
            self.add(place, own, hub)
            ns = transfer[waits]
            arcs = self.add(place, hub[waits], end[waits], ns)
            direct = self.add(place, own[waits], end[waits])
            self.matched.append(Messages(arcs, direct, size[waits], ns, call[waits]))
            if not shared.whole:
                self.unknown.append(arcs)
            self.alone(place, own[~waits], end[~waits])

    def alone(self, process: int, arrive: I64, done: I64) -> None:
        """Collectives of one process that wait for nobody that is known."""
        self.alone_count += len(arrive)
        self.unknown.append(self.add(process, arrive, done, self.time[done] - self.time[arrive]))

    def messages(self) -> Messages:
        """All that were joined."""
        return Messages(*(column([found[i] for found in self.matched]) for i in range(len(Messages._fields))))

    def held_up(self, least: int) -> Amounts:
        """Moves what a transfer took beyond the usual of its call and size to TRANSFER_HELD, if it is a stall."""
        found = self.messages()
        alike = np.unique(np.stack([found.call, found.bytes]), axis=1, return_inverse=True)[1].reshape(-1)
        more_ns = held_up(found.ns, median_of_each(alike, found.ns), least)
        arcs, ns = found.arc[more_ns > 0], more_ns[more_ns > 0]
        moved = ((TimeCategory.TRANSFER, -ns), (TimeCategory.TRANSFER_HELD, ns))
        return joined([Amounts(arcs, np.full(len(arcs), slot(of), np.int16), by) for of, by in moved])

    def _numbers(self, calls: list[Call]) -> I64:
        """Each call's index; new ones are added."""
        self.calls += [call for call in dict.fromkeys(calls) if call not in self.calls]
        index = {call: i for i, call in enumerate(self.calls)}
        return np.array([index[call] for call in calls], np.int64)

    def add(self, process: int, source: I64, target: I64, transfer_ns: I64 | None = None) -> I64:
        """New arcs of the process at `process`."""
        arcs = self.add_arcs(source, target)
        self.process.append(np.full(len(source), process))
        if transfer_ns is not None:
            self.give_slot(arcs, slot(TimeCategory.TRANSFER), transfer_ns)
        return arcs


def join_messages(
    sync: CollectiveSync,
    collective_nodes: Sequence[CollectiveNodes],
    matched: Sequence[MatchedGroup],
    parts: Sequence[RankPart],
) -> None:
    """All that these processes wait for each other, added to `sync`, which has their graphs."""
    time = sync.time
    place = {own.process: i for i, own in enumerate(collective_nodes)}
    free = [own.arrive >= 0 for own in collective_nodes]
    known = chain(_groups(matched, place), _pairs(time, collective_nodes, parts, place))
    for shared in chain(
        known, _by_ends(time, collective_nodes, parts, place, free)
    ):  # the last ones of what is free then
        of = list(zip(shared.places, shared.rows, strict=True))
        sync.join(
            shared,
            *(np.stack([getattr(collective_nodes[i], end)[rows] for i, rows in of]) for end in ("arrive", "done")),
        )
        for i, rows in of:
            free[i][rows] = False
    for i, mask in enumerate(free):
        sync.alone(i, collective_nodes[i].arrive[mask], collective_nodes[i].done[mask])


def _groups(matched: Sequence[MatchedGroup], number_of: dict[Process, int]) -> Iterator[MatchedCollectives]:
    """Groups whose ranks all have a graph."""
    for m in matched:
        members = [number_of.get((part.source.path, part.source.pid), -1) for part in m.parts]
        if min(members) >= 0:
            kinds = [m.keys[key].kind for key in m.key]
            yield MatchedCollectives(members, m.row, m.bytes, list(map(Call, kinds, m.phase.tolist())), m.complete)


def _pairs(
    time: I64, collective_nodes: Sequence[CollectiveNodes], parts: Sequence[RankPart], number_of: dict[Process, int]
) -> Iterator[MatchedCollectives]:
    """Sends and receives: the k-th send of one process to another is the k-th receive of that one. Of two processes it
    is known who that is. Of more it is one that both name; where they do not, which may be since their group counts its
    ranks anew, it is the one whose receives do not end before the sends begin, and end soonest after both began."""
    known = [part for part in parts if _process(part) in number_of]
    sends, receives = (
        [line for part in known for line in _lines(part, number_of, kind)] for kind in POINT_TO_POINT[:2]
    )
    two = len({line.number for line in [*sends, *receives]}) == 2

    @cache
    def fitting(i: int, j: int) -> tuple[float, int, int] | None:
        a, b = sends[i], receives[j]
        return (
            None
            if a.number == b.number
            else _fitting(time, (collective_nodes[a.number], collective_nodes[b.number]), a.rows, b.rows, two)
        )

    def after(i: int, j: int) -> float | None:
        found = fitting(i, j)
        return None if found is None else found[0]

    for i, j in _partners(sends, receives, after).items():
        a, b, (_, first, other) = sends[i], receives[j], fitting(i, j) or (0.0, 0, 0)
        n = min(len(a.rows) - first, len(b.rows) - other)
        own = slice(first, first + n)
        rows = np.stack([a.rows[own], b.rows[other : other + n]])
        yield MatchedCollectives([a.number, b.number], rows, a.bytes[own], _calls("send", a.phase[own]))


def _fitting(
    time: I64, pair: tuple[CollectiveNodes, CollectiveNodes], sends: I64, receives: I64, two: bool
) -> tuple[float, int, int] | None:
    """How long after both began receives usually end, and the first row of both: the k-th send is the k-th receive,
    unless the recordings of both processes began around the first one. None: they are not of each other."""
    possible = []
    for first, second in ((0, 0), (0, 1), (1, 0)):
        a, b = sends[first:], receives[second:]
        if min(len(a), len(b)) and abs(len(a) - len(b)) <= first + second:
            n = min(len(a), len(b))
            ns = done_after(time, pair[0], a[:n], pair[1], b[:n])
            possible += [] if ns is None else [(ns, first, second)]
    if not possible:
        return (0.0, 0, 0) if two and len(sends) == len(receives) else None
    first_to_first, best = possible[0], min(possible)
    if first_to_first[1:] != (0, 0):
        return best if two else None
    return best if two and best[0] < _SOONER * first_to_first[0] > _SOONER * WAITED_NS else first_to_first


def _calls(kind: str, phase: NDArray[np.int8]) -> list[Call]:
    return [Call(kind, each) for each in phase.tolist()]


def _partners(
    sends: Sequence[_PeerMessages], receives: Sequence[_PeerMessages], after: Callable[[int, int], float | None]
) -> dict[int, int]:
    """For each line of sends that of its receives, by index: first those that name each other, then the only ones of a
    group, then the others by time."""
    found: dict[int, int] = {}
    free = set(range(len(receives)))

    def take(pairs: Iterable[tuple[int, int]]) -> None:
        for i, j in pairs:
            if i not in found and j in free:
                found[i] = j
                free.remove(j)

    by_names: dict[tuple[object, ...], int] = {(b.group, b.peer, b.rank): j for j, b in enumerate(receives)}
    named = ((i, by_names.get((a.group, a.rank, a.peer))) for i, a in enumerate(sends))
    take((i, j) for i, j in named if j is not None and after(i, j) is not None)
    for one_way in _of_two(sends, receives):
        take((i, j) for i, j in one_way if after(i, j) is not None)
    left = [i for i in range(len(sends)) if i not in found]
    possible = [(ns, i, j) for i in left for j in free if (ns := after(i, j)) is not None]
    take((i, j) for _, i, j in sorted(possible))
    return found


def _of_two(sends: Sequence[_PeerMessages], receives: Sequence[_PeerMessages]) -> Iterator[list[tuple[int, int]]]:
    """For each group of two processes the pairs of its lines: what one sends the other one receives."""
    lines: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    for way, of_way in enumerate((sends, receives)):
        for i, line in enumerate(of_way):
            if line.group is not None:
                lines.setdefault(line.group, ({}, {}))[way][line.number] = i
    for sending, receiving in lines.values():
        if len(sending.keys() | receiving.keys()) == 2:
            yield [(i, j) for a, i in sending.items() for b, j in receiving.items() if a != b]


class _PeerMessages(NamedTuple):
    """The sends, or the receives, of a process with one other: its place, its rank and the peer's, their group, rows,
    sizes and phases."""

    number: int
    rank: int | None
    peer: int
    group: str | None
    rows: I64
    bytes: I64
    phase: NDArray[np.int8]


def _lines(part: RankPart, number_of: dict[Process, int], kind: str) -> Iterator[_PeerMessages]:
    """Of one kind, one for each peer in each group."""
    rows = collectives_of(part)
    groups = [key.group for key in rows.keys]
    names = list(dict.fromkeys(groups))
    of_kind = np.array([*(key.kind == kind for key in rows.keys), False])[rows.key]
    group = np.array([*map(names.index, groups), -1])[rows.key]
    mine = np.flatnonzero(of_kind)
    for number, peer in np.unique(np.stack([group[mine], rows.peer[mine]]), axis=1).T.tolist():
        own = mine[(group[mine] == number) & (rows.peer[mine] == peer)]
        yield _PeerMessages(
            number_of[_process(part)], part.source.rank, peer, names[number], own, rows.bytes[own], rows.phase[own]
        )


def done_after(time: I64, a: CollectiveNodes, sends: I64, b: CollectiveNodes, receives: I64) -> float | None:
    """How long after both began receives usually end, in ns; None where too many end before their send begins."""
    inside = (a.arrive[sends] >= 0) & (b.arrive[receives] >= 0)
    begin, meant = time[a.arrive[sends[inside]]], time[b.arrive[receives[inside]]]
    end = time[b.done[receives[inside]]]
    if not len(end) or np.count_nonzero(end < begin - EARLY_NS) > _IMPOSSIBLE * len(end):
        return None
    return float(np.median(np.maximum(end - np.maximum(begin, meant), 0)))


def _by_ends(
    time: I64,
    collective_nodes: Sequence[CollectiveNodes],
    parts: Sequence[RankPart],
    number_of: dict[Process, int],
    free: Sequence[NDArray[np.bool_]],
) -> Iterator[MatchedCollectives]:
    """What is left of two processes and was waited for: collectives of one kind and size that ended together. The
    record has no group for them, and other groups' collectives of the same kind lie between."""
    tables = {number_of[key]: collectives_of(p) for p in parts if (key := _process(p)) in number_of}
    if len(collective_nodes) != 2 or len(tables) != 2:
        return
    left = [np.flatnonzero(mask) for mask in free]
    if not len(left[0]) or not len(left[1]):
        return
    alike = [_alike(tables[i], rows) for i, rows in enumerate(left)]
    for same in np.intersect1d(alike[0], alike[1]):
        own, other = ended_together(
            time, collective_nodes, *(rows[a == same] for rows, a in zip(left, alike, strict=True))
        )
        if len(own):
            rows = tables[0]
            kind = rows.keys[int(rows.key[own[0]])].kind
            yield MatchedCollectives([0, 1], np.stack([own, other]), rows.bytes[own], _calls(kind, rows.phase[own]))


def ended_together(
    time: I64, collective_nodes: Sequence[CollectiveNodes], rows: I64, other_rows: I64
) -> tuple[I64, I64]:
    """The rows of two processes that were waited for, and whose ends are next to each other; the longer the waiting,
    the further apart, since a record may be late."""
    ends, others = time[collective_nodes[0].done[rows]], time[collective_nodes[1].done[other_rows]]
    order = np.argsort(others, kind="stable")
    other_rows, others = other_rows[order], others[order]
    after = np.clip(np.searchsorted(others, ends), 0, len(others) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(others[before] - ends) < np.abs(others[after] - ends), before, after)
    long = np.maximum(
        ends - time[collective_nodes[0].arrive[rows]],
        others[nearest] - time[collective_nodes[1].arrive[other_rows[nearest]]],
    )
    apart = np.abs(others[nearest] - ends)
    found = np.flatnonzero((apart <= np.maximum(TOGETHER_NS, _TOGETHER * long)) & (long >= WAITED_NS))
    found = found[np.argsort(apart[found], kind="stable")]
    _, first = np.unique(nearest[found], return_index=True)  # of several with one end, the nearest
    found = np.sort(found[first])
    return rows[found], other_rows[nearest[found]]


def _alike(rows: CollectiveRows, chosen: I64) -> NDArray[np.str_]:
    """Kind and size of each row, as texts to compare between processes."""
    kinds = np.array([key.kind for key in rows.keys])
    return np.char.add(np.char.add(kinds[rows.key[chosen]], " "), rows.bytes[chosen].astype(str))


def _process(part: RankPart) -> Process:
    return part.source.path, part.source.pid
