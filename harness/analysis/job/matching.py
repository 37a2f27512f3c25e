"""Collectives across ranks: the same collective found on every rank, so that waiting is separated from transfer.

A collective ends everywhere at about the same time and cannot move data before its last member arrived. So in one
collective, a rank's duration minus the fastest rank's is waiting, and the ends show how far two clocks are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.blocks import CollectiveBlock, blocks_of
from harness.analysis.process.collective_rows import CollectiveKey
from harness.analysis.process.part import RankPart
from harness.traces.trace import I64
from harness.traces.vocabulary import POINT_TO_POINT

NAMELESS = "collectives recorded without their group"
_EVEN_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_SWAPPED = 0.1  # of a sequence: if more of it disagrees, neighbours that changed places are not the reason
_NEIGHBOURS = 3  # how far apart two of them may be
_SAMPLE = 64  # collectives of a sequence whose ends are looked up in another
_MEETING_MOSTLY = 0.5  # share of the instances that must meet where the ends choose among places
MEETING_SHARE = 0.8  # share of the instances of a nameless group that must have all ranks in them at one moment


@dataclass(frozen=True)
class Group:
    """A communicator, whose collectives are one sequence. `only`: of this kind alone, where names are not enough."""

    name: str | None
    ranks: tuple[int, ...] | None
    only: tuple[str, str | None, int | None] | None = None  # kind, element type, size

    @property
    def nameless(self) -> bool:
        return self.name is None and self.ranks is None


@dataclass(frozen=True)
class MatchedGroup:
    """One group's collectives on r ranks: instance i is column i of each (r, n) table. Times are not aligned; they are
    unix time where the trace records it."""

    group: Group
    parts: list[RankPart]
    keys: list[CollectiveKey]
    key: NDArray[np.int32]  # (n,) of the first rank
    bytes: I64  # (n,) the largest any rank recorded, -1 unknown
    start_ns: I64
    end_ns: I64
    inside: NDArray[np.bool_]  # (n,) started inside every rank's window
    row: I64  # (r, n) each rank's own numbers of the rows
    phase: NDArray[np.int8]  # (n,) of the first rank, phases.Phase
    of_profiler: NDArray[np.bool_]  # (n,) waits for a rank's profiler, not for its work; see profiler_waits.py
    whole_job: bool  # every rank of the job was read, as far as its world size is recorded

    @cached_property
    def clocks(self) -> list[str]:
        """The clock of each rank."""
        return [part.clock for part in self.parts]

    @cached_property
    def processes(self) -> list[tuple[int, str, int]]:
        """The key of each rank's part."""
        return [part.key for part in self.parts]

    @property
    def complete(self) -> bool:
        """Whether every member of the group was read."""
        size = self.keys[int(self.key[0])].group_size if len(self.key) else None
        members = len(self.group.ranks) if self.group.ranks else size
        return self.whole_job if members is None else len(self.parts) >= members


@dataclass
class JobCollectives:
    """Every group of a job: matched groups, rows that cannot be matched, and why. `parts`: whom the blocks number."""

    parts: Sequence[RankPart] = ()
    matched: list[MatchedGroup] = field(default_factory=list)
    unmatched: list[CollectiveBlock] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    # (kind, phase, number) -> sum over the ranks with counted steps; without such ranks, over all ranks
    phases: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    @cached_property
    def window_ns(self) -> I64:
        """(2, parts): where the window of each part begins and ends, on its own clock."""
        return np.array([[p.window_start_ns for p in self.parts], [p.window_end_ns for p in self.parts]], np.int64)

    @cached_property
    def epoch_ns(self) -> I64:
        """(parts,): the unix time of the 0 of each part's clock."""
        return np.array([part.epoch_ns or 0 for part in self.parts], np.int64)

    @cached_property
    def clock(self) -> I64:
        """(parts,): each part's clock as a number."""
        index: dict[str, int] = {}
        return np.array([index.setdefault(part.clock, len(index)) for part in self.parts], np.int64)


def match_collectives(
    parts: Sequence[RankPart], world_size: int | None, blocks: Sequence[CollectiveBlock] | None = None
) -> JobCollectives:
    """Match the collectives of a job's ranks, group by group. blocks: the parts' collectives, where they were unpacked
    already."""
    blocks = blocks_of(parts) if blocks is None else blocks
    result = JobCollectives(parts)
    stepped = np.array([bool(part.steps.durations_ns) for part in parts], np.bool_)
    if not stepped.any():
        stepped[:] = True
    groups: dict[Group, list[CollectiveBlock]] = {}
    for block in blocks:
        _add_phases(result.phases, block.ranks(stepped[block.rank]), result.window_ns)
        for group, own in _by_group(block):
            groups.setdefault(group, []).append(own)
    for group, members in groups.items():
        reason = _obstacle(group, members, world_size)
        aligned = None if reason else _align_sequences(members, result)
        if aligned is None:
            result.unmatched += members
            if sum(len(own.rank) for own in members) > 1:
                result.reasons.append(reason or _differ(group))
        else:
            matched = _tables(group, aligned, result, whole_job=world_size is None or len(parts) >= world_size)
            if group.nameless and not _meets(matched):
                result.unmatched += members
                result.reasons.append(_differ(group))
            else:
                result.matched.append(matched)
    return result


def _add_phases(sums: Counter[tuple[str, int, str]], block: CollectiveBlock, window_ns: I64) -> None:
    """Count, bytes and time of these ranks' collectives inside their windows, per kind and phase."""
    inside = block.inside(window_ns)
    for i, key in enumerate(block.keys):
        mine = (block.key == i) & inside.any(axis=0)
        for phase in np.unique(block.phase[mine]).tolist():
            at = mine & (block.phase == phase)
            chosen = block.columns(at)
            size, duration = chosen.bytes[inside[:, at]], (chosen.end_ns - chosen.start_ns)[inside[:, at]]
            sums[key.kind, phase, "count"] += len(size)
            sums[key.kind, phase, "bytes"] += int(np.maximum(size, 0).sum())
            sums[key.kind, phase, "unsized"] += int((size < 0).sum())
            sums[key.kind, phase, "duration_ns"] += int(duration.sum())


def _differ(group: Group) -> str:
    if group.nameless:
        return f"{NAMELESS}: not all ranks issued the same calls, so it is not known which calls belong together"
    return f"group {group.name}: the ranks' sequences of collectives differ"


def _by_group(block: CollectiveBlock) -> Iterable[tuple[Group, CollectiveBlock]]:
    """A block's rows per group. Sends and receives are groups of their own; so is each kind without a group's name."""
    of_key = [_group(key) for key in block.keys]
    for group in dict.fromkeys(of_key):
        chosen = np.isin(block.key, [i for i, g in enumerate(of_key) if g == group])
        if chosen.any():
            yield group, block.columns(chosen)


def _group(key: CollectiveKey) -> Group:
    if key.kind in POINT_TO_POINT or (key.group is None and key.ranks is None):
        return Group(key.group, key.ranks, (key.kind, key.dtype, key.group_size))
    return Group(key.group, key.ranks)


def _obstacle(group: Group, members: list[CollectiveBlock], world_size: int | None) -> str | None:
    """Why a group cannot be matched at all; None where it is worth trying."""
    if group.only is not None and group.only[0] in POINT_TO_POINT:
        return "point-to-point transfers have no common instance"
    count = sum(len(own.rank) for own in members)
    sizes = [size for own in members if (size := own.keys[int(own.key[0])].group_size) is not None]
    expected = len(group.ranks) if group.ranks else max(sizes) if sizes else world_size
    if expected is not None and count > expected:
        if group.nameless:
            return f"{NAMELESS}: {count} ranks in groups of {expected}, and each rank's group is not known"
        return f"group {group.name}: {count} ranks use it and its size is {expected}: several have that name"
    if group.nameless and world_size not in (None, count):
        return f"{NAMELESS}: only {count} of {world_size} ranks were read"
    return None


# Members, and where in the longest one's sequence their first collective stands (negative: before it).
_Placed = tuple[CollectiveBlock, int]


def _align_sequences(members: list[CollectiveBlock], job: JobCollectives) -> list[_Placed] | None:
    """Every member at its place; None without a match.

    Two sequences match where kinds, element types and sizes agree in the stretch that they share. Neighbours that began
    at about the same time may have changed places, and are put back. On one clock the spans of a collective meet on all
    ranks, and the ends decide between several places. Else the whole sequence must lie in the longer sequence, at one
    place only. On two clocks the recordings may begin and end apart; then more than half of it must lie there.
    """
    alike = [same for codes, own in zip(_codes(members), members, strict=True) for same in _alike(own, codes)]
    longest = max(len(code) for _, code in alike)
    rows, reference = min((each for each in alike if len(each[1]) == longest), key=lambda each: int(each[0].rank[0]))
    lead = rows.ranks(slice(0, 1))
    placed: list[_Placed] = []
    for own, code in alike:
        for some, place in _places(lead, reference, own, code, job):
            if place is None:
                return None
            placed.append((_in_order(some, reference, code, place), place))
    return placed


def _alike(block: CollectiveBlock, codes: I64) -> Iterable[tuple[CollectiveBlock, I64]]:
    """A block, split into ranks with one sequence of codes, and that sequence. codes: (r, n)."""
    if (codes == codes[0]).all():
        yield block, codes[0]
        return
    _, first, which = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    for i, at in enumerate(first.tolist()):
        yield block.ranks(which.reshape(-1) == i), codes[at]


def _places(
    lead: CollectiveBlock, reference: I64, block: CollectiveBlock, code: I64, job: JobCollectives
) -> Iterable[tuple[CollectiveBlock, int | None]]:
    """The ranks of a block by their place in the reference. Ranks on the lead's clock are looked at one by one."""
    one_clock = job.clock[block.rank] == job.clock[lead.rank[0]]
    if not one_clock.all():
        yield block.ranks(~one_clock), _only_place(reference, code, partly=True)
    for i in np.flatnonzero(one_clock).tolist():
        alone = block.ranks(slice(i, i + 1))
        if alone.rank[0] == lead.rank[0]:
            yield alone, 0
            continue
        ahead = int(job.epoch_ns[alone.rank[0]] - job.epoch_ns[lead.rank[0]])
        place = _place_by_ends((reference, code), lead, alone, ahead)
        yield alone, _only_place(reference, code, partly=False) if place is None else place


def _in_order(block: CollectiveBlock, reference: I64, sequence: I64, shift: int) -> CollectiveBlock:
    """The rows with neighbours put back that had changed places."""
    theirs, ours = _shared(len(reference), len(sequence), shift)
    order = np.arange(len(sequence))
    back = _agreement(reference[theirs], sequence[ours])
    if back is not None:
        order[ours] = ours.start + back
    return block if np.array_equal(order, np.arange(len(sequence))) else block.columns(order)


def _shared(reference: int, length: int, shift: int) -> tuple[slice, slice]:
    """The stretch that two sequences of these lengths share, as a slice of each; may be empty."""
    first, last = max(shift, 0), max(min(shift + length, reference), 0)
    return slice(first, last), slice(first - shift, max(last, first) - shift)


def _agreement(reference: I64, sequence: I64) -> I64 | None:
    """An order in which `sequence` agrees with `reference`: its own order, or one with a few neighbours swapped. None:
    they do not agree."""
    if len(reference) != len(sequence) or not len(sequence):
        return None
    order = np.arange(len(sequence))
    apart = np.flatnonzero(reference != sequence)
    if len(apart) > max(2, _SWAPPED * len(sequence)):
        return None
    if not np.array_equal(np.sort(reference[apart]), np.sort(sequence[apart])):
        return None  # a cheap check first: there are as many places to try as collectives
    for run in np.split(apart, np.flatnonzero(np.diff(apart) > _NEIGHBOURS) + 1) if len(apart) else ():
        stretch = slice(int(run[0]), int(run[-1]) + 1)
        here, there = np.argsort(reference[stretch], kind="stable"), np.argsort(sequence[stretch], kind="stable")
        order[stretch.start + here] = stretch.start + there
    return order if np.array_equal(reference, sequence[order]) else None


def _codes(members: Sequence[CollectiveBlock]) -> list[I64]:
    """A number per collective of each member, (r, n); collectives that may be the same have the same number. Sizes and
    types count where every member recorded them, and sizes only for kinds in which all ranks have the same size."""
    typed = all(k.dtype is not None for own in members for k in own.keys)
    sized = all(bool((own.bytes >= 0).all()) for own in members)
    index: dict[tuple[str, str | None], int] = {}
    columns = []
    for own in members:
        kind = [index.setdefault((k.kind, k.dtype if typed else None), len(index)) for k in own.keys]
        even = np.array([sized and k.kind in _EVEN_KINDS for k in own.keys])
        columns.append((np.array(kind)[own.key], np.where(even[own.key], own.bytes, 0)))
    return [kind + size * len(index) for kind, size in columns]


def _place_by_ends(codes: tuple[I64, I64], lead: CollectiveBlock, block: CollectiveBlock, ahead_ns: int) -> int | None:
    """Of the places where codes agree and spans meet, the place with the nearest ends; None without such a place. Only
    places with a nearby end are tried. lead, block: of one rank each."""
    lead_start, lead_end = lead.start_ns[0], lead.end_ns[0]
    own_start, own_end = block.start_ns[0] + ahead_ns, block.end_ns[0] + ahead_ns
    sample = np.unique(np.linspace(0, len(block.key) - 1, min(len(block.key), _SAMPLE)).astype(np.int64))
    order = np.argsort(lead_end, kind="stable")
    found = np.searchsorted(lead_end[order], own_end[sample])
    tried: set[int] = set()
    for near in (-1, 0, 1):
        at = order[np.clip(found + near, 0, len(order) - 1)]
        tried |= set((at - sample).tolist())
    gaps: dict[int, float] = {}
    for shift in sorted(tried):
        theirs, ours = _shared(len(lead.key), len(block.key), shift)
        if _agreement(codes[0][theirs], codes[1][ours]) is None:
            continue
        together = (own_start[ours] <= lead_end[theirs]) & (lead_start[theirs] <= own_end[ours])
        if float(together.mean()) >= _MEETING_MOSTLY:
            gaps[shift] = float(np.median(np.abs(lead_end[theirs] - own_end[ours])))
    return min(gaps, key=lambda shift: gaps[shift], default=None)


def _only_place(reference: I64, sequence: I64, partly: bool) -> int | None:
    inside = np.arange(len(reference) - len(sequence) + 1)
    whole = _first_two(reference, sequence, inside, len(sequence))
    if whole or not partly:
        return whole[0] if len(whole) == 1 else None
    later, earlier = np.flatnonzero(reference == sequence[0]), -np.flatnonzero(sequence == reference[0])
    found = _first_two(reference, sequence, np.unique(np.concatenate([earlier, later])), len(sequence) // 2 + 1)
    return found[0] if len(found) == 1 else None


def _first_two(reference: I64, sequence: I64, shifts: I64, least: int) -> list[int]:
    """The first two places where at least `least` collectives agree: two are enough to see that there are several."""
    shared = ((shift, *_shared(len(reference), len(sequence), shift)) for shift in shifts.tolist())
    agreeing = (
        shift
        for shift, theirs, ours in shared
        if ours.stop - ours.start >= least and _agreement(reference[theirs], sequence[ours]) is not None
    )
    return list(islice(agreeing, 2))


def _meets(m: MatchedGroup) -> bool:
    """Whether most collectives have a moment with every rank in them, as real ones do. Clocks are aligned by ends."""
    if m.end_ns.shape[1] == 0:
        return False
    other_clock = np.array([clock != m.clocks[0] for clock in m.clocks])
    apart = m.end_ns - m.end_ns[0]
    near = apart[:, :1]  # what is left is small enough for the median's float64
    ahead = near[:, 0] + np.median(apart - near, axis=1).astype(np.int64)
    ahead = np.where(other_clock, ahead, 0)[:, None]
    together = (m.start_ns - ahead).max(axis=0) <= (m.end_ns - ahead).min(axis=0)
    return float(together.mean()) >= MEETING_SHARE


def _tables(group: Group, placed: list[_Placed], job: JobCollectives, whole_job: bool) -> MatchedGroup:
    first = max(shift for _, shift in placed)
    n = max(min(shift + len(rows.key) for rows, shift in placed) - first, 0)
    cut = [rows.columns(slice(first - shift, first - shift + n)) for rows, shift in placed]
    rank = np.concatenate([rows.rank for rows in cut])
    order = np.argsort(rank, kind="stable")
    lead = min(cut, key=lambda rows: int(rows.rank[0]))
    start, end = (np.concatenate([getattr(rows, name) for rows in cut])[order] for name in ("start_ns", "end_ns"))
    epoch = job.epoch_ns[rank[order], None]
    begun, ended = job.window_ns[:, rank[order], None]
    return MatchedGroup(
        group,
        [job.parts[i] for i in rank[order].tolist()],
        lead.keys,
        lead.key,
        np.max([rows.bytes.max(axis=0) for rows in cut], axis=0),
        start + epoch,
        end + epoch,
        ((start >= begun) & (start < ended)).all(axis=0),
        np.concatenate([np.broadcast_to(rows.row, rows.start_ns.shape) for rows in cut])[order],
        lead.phase,
        np.zeros(n, np.bool_),
        whole_job,
    )
