"""The job's collectives as tables: bandwidth, waiting against transfer, message sizes and their fits, stragglers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.blocks import CollectiveBlock
from harness.analysis.job.matching import JobCollectives, MatchedGroup
from harness.analysis.process.collective_rows import CollectiveKey
from harness.analysis.process.part import RankPart
from harness.analysis.process.phases import PHASES
from harness.analysis.summary import (
    Clock,
    Collective,
    CollectiveFit,
    CollectivePhase,
    LongMessage,
    MessageSize,
    Straggler,
    Withheld,
)
from harness.common.model.alpha_beta import bus_factor, fit_alpha_beta
from harness.traces.trace import I32, I64
from harness.traces.vocabulary import POINT_TO_POINT

CHANCE = 0.01  # a rank is a straggler if chance alone makes it last this often with a lower probability
MUCH_MORE = 1.5  # times as often as if all ranks took turns
NOTICEABLE = 0.1  # and when the skew is at least this share of the collectives' time


@dataclass
class _Sums:
    """Everything of one kind in one group."""

    ranks: set[tuple[int, str, int]] = field(default_factory=set)
    count: int = 0
    bytes: int = 0
    bytes_known: bool = True
    duration_ns: int = 0
    spans: int = 0
    waiting_ns: int | None = None
    least_waiting_ns: int | None = None
    profiler_ns: int = 0
    skew_ns: int = 0
    skewed: int = 0  # instances whose skew could be measured
    transfer_time_ns: int = 0  # once per instance: what bandwidth is computed from
    last: Counter[int] = field(default_factory=Counter)
    hosts: set[str] = field(default_factory=set)
    of_rank: Counter[tuple[int, str, int]] = field(default_factory=Counter)  # its calls
    # By rank, count, bytes and nanoseconds of those that cannot be matched with other ranks', which may be the same.
    unmatched: dict[tuple[int, str, int], tuple[int, int, int]] = field(default_factory=dict)


def tabulate(job: JobCollectives, clocks: dict[str, Clock]) -> list[Collective]:
    """One row per kind, group, size and element type, most time first."""
    sums: dict[CollectiveKey, _Sums] = {}
    for matched in job.matched:
        for i, key in enumerate(matched.keys):
            chosen = np.flatnonzero((matched.key == i) & matched.inside)
            if len(chosen):
                full = _with_size(key, matched)
                _add_matched(sums.setdefault(full, _Sums()), matched, chosen, clocks)
    for rows in job.unmatched:
        inside = rows.inside(job.window_ns)
        for i, key in enumerate(rows.keys):
            chosen = (rows.key == i) & inside
            if chosen.any():
                _add_unmatched(sums.setdefault(key, _Sums()), job.parts, rows, chosen)
    table = [_row(key, _with_unmatched(key.kind, s)) for key, s in sums.items()]
    return sorted(table, key=lambda c: (-c.duration_ns, c.kind, c.group or "", c.dtype or ""))


def _with_size(key: CollectiveKey, m: MatchedGroup) -> CollectiveKey:
    """The key with the size of its group; it is the world size where no group was recorded."""
    if key.group_size is not None or not m.complete or len(m.parts) < 2:
        return key
    return replace(key, group_size=len(m.parts))


def _add_matched(s: _Sums, m: MatchedGroup, chosen: I64, clocks: dict[str, Clock]) -> None:
    duration = m.end_ns[:, chosen] - m.start_ns[:, chosen]
    fastest = duration.min(axis=0)
    size = m.bytes[chosen]
    s.ranks.update(m.processes)
    s.of_rank.update(dict.fromkeys(m.processes, size.size))
    s.hosts |= {part.source.host for part in m.parts if part.source.host is not None}
    s.bytes_known &= bool((size >= 0).all())
    s.duration_ns += int(duration.sum())
    s.spans += duration.size
    s.count += len(chosen)
    s.bytes += int(np.maximum(size, 0).sum())
    s.transfer_time_ns += int(fastest.sum())
    own, waits = ~m.of_profiler[chosen], (duration - fastest).sum(axis=0)
    if len(m.parts) > 1 and not m.complete:
        s.least_waiting_ns = (s.least_waiting_ns or 0) + int(waits[own].sum())
    if len(m.parts) > 1 and m.complete:
        s.waiting_ns = (s.waiting_ns or 0) + int(waits[own].sum())
        s.profiler_ns += int(waits[~own].sum())
        start = _aligned_starts(m, chosen[own], clocks)
        if start is not None:
            s.skew_ns += int((start.max(axis=0) - start.min(axis=0)).sum())
            s.skewed += start.shape[1]
            lasts = np.bincount(start.argmax(axis=0), minlength=len(m.parts)).tolist()
            for part, count in zip(m.parts, lasts, strict=True):
                if count and part.source.rank is not None:
                    s.last[part.source.rank] += count


def _aligned_starts(m: MatchedGroup, chosen: I64, clocks: dict[str, Clock]) -> I64 | None:
    """Starts on one clock; None where a rank's clock cannot be aligned."""
    if any(clock not in clocks for clock in m.clocks):
        return None
    offset = np.array([clocks[clock].offset_ns for clock in m.clocks])[:, None]
    aligned: I64 = m.start_ns[:, chosen] - offset
    return aligned


def _add_unmatched(s: _Sums, parts: Sequence[RankPart], block: CollectiveBlock, chosen: NDArray[np.bool_]) -> None:
    """chosen: (r, n)."""
    duration = block.end_ns - block.start_ns
    s.bytes_known &= bool((block.bytes[chosen] >= 0).all())
    s.duration_ns += int(duration[chosen].sum())
    s.spans += int(chosen.sum())
    table = (chosen, np.where(chosen, np.maximum(block.bytes, 0), 0), np.where(chosen, duration, 0))
    columns = (column.sum(axis=1).tolist() for column in table)
    for i, count, size, ns in zip(block.rank.tolist(), *columns, strict=True):
        if count:
            key, host = parts[i].key, parts[i].source.host
            s.ranks.add(key)
            s.of_rank[key] += count
            s.hosts |= {host} - {None}
            own = s.unmatched.get(key, (0, 0, 0))
            s.unmatched[key] = (own[0] + count, own[1] + size, own[2] + ns)


def _with_unmatched(kind: str, s: _Sums) -> _Sums:
    """With the unmatched rows: a collective counts once, with the numbers of the rank that did most of them, and not
    once for each rank; sends and receives count for each rank."""
    own = sorted(s.unmatched.values())
    count, size, ns = map(sum, zip((0, 0, 0), *(own if kind in POINT_TO_POINT else own[-1:]), strict=True))
    return replace(s, count=s.count + count, bytes=s.bytes + size, transfer_time_ns=s.transfer_time_ns + ns)


def _row(key: CollectiveKey, s: _Sums) -> Collective:
    known = s.bytes_known and s.bytes > 0 and s.transfer_time_ns > 0
    algorithm = s.bytes / s.transfer_time_ns if known else None
    factor = bus_factor(key.kind, key.group_size)
    return Collective(
        kind=key.kind,
        group=key.group,
        group_size=key.group_size,
        dtype=key.dtype,
        count=s.count,
        ranks=len(s.ranks),
        min_rank_count=min(s.of_rank.values()),
        max_rank_count=max(s.of_rank.values()),
        bytes=s.bytes if s.bytes_known else None,
        duration_ns=s.duration_ns,
        mean_ns=round(s.duration_ns / s.spans),
        waiting_ns=s.waiting_ns,
        transfer_ns=None if s.waiting_ns is None else s.duration_ns - s.waiting_ns - s.profiler_ns,
        waiting_fraction=None if s.waiting_ns is None else s.waiting_ns / max(s.duration_ns - s.profiler_ns, 1),
        least_waiting_ns=s.least_waiting_ns,
        profiler_ns=s.profiler_ns,
        mean_start_skew_ns=round(s.skew_ns / s.skewed) if s.skewed else None,
        algorithm_bandwidth_gb_per_s=algorithm,
        bus_bandwidth_gb_per_s=algorithm * factor if algorithm is not None and factor is not None else None,
        last_arrivals=dict(sorted(s.last.items())),
        hosts=len(s.hosts) if s.hosts else None,
    )


_Message = tuple[str, int | None, int, bool]  # kind, group size, bytes, whether waiting is inside


def message_sizes(job: JobCollectives) -> list[MessageSize]:
    """Median time per kind, group size and message size: the transfer, or with waiting where ranks do not match."""
    times: dict[_Message, list[I64]] = {}
    for m in job.matched:
        fastest = (m.end_ns - m.start_ns).min(axis=0)
        columns = (m.key[m.inside], m.bytes[m.inside], fastest[m.inside])
        waits = len(m.parts) < 2 or not m.complete
        _collect(times, [_with_size(key, m) for key in m.keys], columns, waits=waits)
    for rows in job.unmatched:
        inside = rows.inside(job.window_ns)
        key = np.broadcast_to(rows.key, inside.shape)[inside]
        columns = (key, rows.bytes[inside], (rows.end_ns - rows.start_ns)[inside])
        _collect(times, rows.keys, columns, waits=True)
    table = [
        MessageSize(
            kind=kind,
            group_size=group_size,
            bytes=size,
            count=sum(map(len, lists)),
            median_transfer_ns=round(float(np.median(np.concatenate(lists)))),
            includes_waiting=waits,
        )
        for (kind, group_size, size, waits), lists in times.items()
    ]
    return sorted(table, key=lambda t: (t.kind, t.group_size or 0, t.bytes, t.includes_waiting))


def _collect(
    times: dict[_Message, list[I64]], keys: list[CollectiveKey], matched_columns: tuple[I32, I64, I64], *, waits: bool
) -> None:
    key, size, duration = matched_columns
    for i, k in enumerate(keys):
        for b in np.unique(size[(key == i) & (size > 0)]).tolist():
            times.setdefault((k.kind, k.group_size, b, waits), []).append(duration[(key == i) & (size == b)])


def long_messages(job: JobCollectives, clocks: dict[str, Clock]) -> list[LongMessage]:
    """Those of all ranks, one rank after the other; with transfer and waiting where all ranks of the group match."""
    groups = [m for m in job.matched if len(m.parts) > 1 and m.complete]
    lines = [{key: line for line, key in enumerate(m.processes)} for m in groups]
    found = []
    for part in job.parts:
        for row in part.rows.long_messages:
            mine = ((m, own[part.key]) for m, own in zip(groups, lines, strict=True) if part.key in own)
            found.append(next((with_own for m, line in mine if (with_own := _split(row, m, line, clocks))), row))
    return found


def _split(long_message: LongMessage, m: MatchedGroup, row_number: int, clocks: dict[str, Clock]) -> LongMessage | None:
    """The row with what the other ranks did in its collectives; None: these are not, or not all, of this group."""
    chosen = np.flatnonzero(np.isin(m.row[row_number], long_message.collectives) & ~m.of_profiler)
    if not len(chosen) or len(chosen) < len(long_message.collectives):
        return None
    duration = (m.end_ns - m.start_ns)[:, chosen]
    transfer_ns = int(duration.min(axis=0).sum())
    known = {
        "group_size": long_message.group_size or len(m.parts),
        "bytes": long_message.bytes
        if long_message.bytes is not None or int(m.bytes[chosen[0]]) < 0
        else int(m.bytes[chosen[0]]),
        "transfer_ns": transfer_ns,
        "waiting_ns": long_message.duration_ns - transfer_ns,
    }
    if (start := _aligned_starts(m, chosen, clocks)) is not None:
        lasts = Counter(start.argmax(axis=0).tolist())
        known["mean_start_skew_ns"] = round(float((start.max(axis=0) - start.min(axis=0)).mean()))
        known["last_rank"] = m.parts[lasts.most_common(1)[0][0]].source.rank
    return long_message.model_copy(update=known)


def stragglers(job: JobCollectives, clocks: dict[str, Clock]) -> list[Straggler]:
    """Ranks that arrive last far more often than by chance, where the skew is noticeable."""
    count: Counter[int] = Counter()
    took_part: Counter[int] = Counter()
    lateness: Counter[int] = Counter()
    share: defaultdict[int, float] = defaultdict(float)
    skew, time = 0, 0
    for m in job.matched:
        chosen = np.flatnonzero(m.inside & ~m.of_profiler)
        if len(m.parts) < 2 or not m.complete or not len(chosen):
            continue
        if (start := _aligned_starts(m, chosen, clocks)) is None:
            continue
        first, last = start.min(axis=0), start.argmax(axis=0)
        skew += int((start.max(axis=0) - first).sum()) * len(m.parts)
        time += int((m.end_ns - m.start_ns)[:, chosen].sum())
        lasts, late = np.bincount(last, minlength=len(m.parts)), (start - first).sum(axis=1)
        for part, own_lasts, own_late in zip(m.parts, lasts.tolist(), late.tolist(), strict=True):
            if (rank := part.source.rank) is not None:
                count[rank] += own_lasts
                took_part[rank] += len(chosen)
                lateness[rank] += own_late
                share[rank] += len(chosen) / len(m.parts)
    if skew < NOTICEABLE * time:
        return []
    found = []
    for rank, last in count.items():
        of, late_ns = took_part[rank], lateness[rank] // took_part[rank]
        if last > MUCH_MORE * share[rank] and chance_of(last, of, share[rank] / of) < CHANCE:
            seen = f"last to arrive at {last} of {of} collectives, {late_ns / 1e6:.3f} ms after the first on average"
            found.append(
                Straggler(rank=rank, last_arrivals=last, collectives=of, mean_lateness_ns=late_ns, evidence=seen)
            )
    return sorted(found, key=lambda s: (-s.last_arrivals, s.rank))


def chance_of(successes: int, trials: int, probability: float) -> float:
    """Probability of at least this number of successes in independent trials (binomial tail).

    >>> round(chance_of(5, 8, 1 / 8), 6)
    0.00123
    """
    expected = trials * probability
    if successes <= expected:
        return 1.0
    if trials > 1000:  # the normal tail's bound is close enough to decide and cheap
        deviation = (successes - expected) / (expected * (1 - probability)) ** 0.5
        return float(np.exp(-(deviation**2) / 2))
    return sum(
        comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(successes, trials + 1)
    )


def collective_phases(job: JobCollectives, steps: int) -> list[CollectivePhase]:
    """One row per kind and phase, summed over ranks. steps: counted steps, summed over ranks as well."""
    sums = job.phases
    rows = [
        CollectivePhase(
            kind=kind,
            phase=PHASES[phase],
            count=sums[kind, phase, "count"],
            count_per_step=sums[kind, phase, "count"] / steps if steps else None,
            bytes=None if sums[kind, phase, "unsized"] else sums[kind, phase, "bytes"],
            least_bytes=sums[kind, phase, "bytes"],
            duration_ns=sums[kind, phase, "duration_ns"],
        )
        for kind, phase in {(kind, phase) for kind, phase, _ in sums}
    ]
    return sorted(rows, key=lambda r: (-r.duration_ns, r.kind, r.phase))


def fits(sizes: Sequence[MessageSize]) -> tuple[list[CollectiveFit], list[Withheld]]:
    """α (latency) and β (time per byte) of every kind and group size with enough different message sizes; those that
    are not given, and why."""
    groups: defaultdict[tuple[str, int | None, bool], list[MessageSize]] = defaultdict(list)
    for row in sizes:
        groups[row.kind, row.group_size, row.includes_waiting].append(row)
    found, withheld = [], []
    for (kind, group_size, waits), rows in groups.items():
        line = fit_alpha_beta([r.bytes for r in rows], [r.median_transfer_ns for r in rows])
        if line is None:
            continue
        if why := line.objection():
            group = f"{group_size} ranks" if group_size else "groups of unknown size"
            reason = f"{kind} of {group}{', waiting included' * waits}: {why}"
            withheld.append(Withheld(field="collective_fits.alpha_ns, beta_ns_per_byte", reason=reason))
        found.append(
            CollectiveFit(
                kind=kind,
                group_size=group_size,
                points=line.points,
                alpha_ns=None if why else line.alpha_ns,
                beta_ns_per_byte=None if why else line.beta_ns_per_byte,
                r_squared=line.r2_log,
                includes_waiting=waits,
            )
        )
    return found, withheld
