"""Ranks merged so far: what a job's Summary is made of, joined two by two or many at once, in any order.

Merging is a tree. A leaf reduces the parts of some ranks; a reducer joins what several gave into one of the same kind;
the root makes the Summary of the last. What adds up is added; what is compared across ranks (starts and ends of
collectives, windows, steps) stays, as tables; so the shape of the tree changes no number. Of many ranks only the
outermost keep what tells one rank's story: each step, each kind of work, the longest gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from statistics import median

import numpy as np
from msgspec.structs import fields

from harness.analysis.job.blocks import CollectiveBlock, blocks_of, renumbered
from harness.analysis.job.pop import Sums, added, sums_of
from harness.analysis.process.part import Compressible, RankPart
from harness.analysis.summary import Device, Withheld

MOST_DETAILED = 1024  # ranks of which each keeps its details: a summary of them has some 10 MB
OUTERMOST = 8  # ranks at either end of each measure that keep theirs in a larger job
DETAILS = "devices.steps, kinds, idle_causes, longest_gaps, metric_averages, counters, host_activities, long_messages"
_NONE = Compressible()
_SUMMED: dict[str, object] = {"tables": _NONE, "collectives": _NONE, "graph": _NONE, "phases": {}, "copies": []}
_OF_DEVICE = tuple(field.name for field in fields(Device) if field.default_factory is list)  # its own tables


@dataclass(frozen=True)
class JobMerge:
    """Some ranks of one job. ranks: in canonical order, without what `sums` and `blocks` hold. At least one."""

    ranks: list[RankPart]
    sums: Sums
    blocks: list[CollectiveBlock]


def merge_parts(parts: Sequence[RankPart]) -> JobMerge:
    """A leaf of the tree: the parts of some ranks, each of them once."""
    parts = sorted(parts, key=lambda part: part.key)
    return JobMerge(_bounded([part.model_copy(update=_SUMMED) for part in parts]), sums_of(parts), blocks_of(parts))


def join_merges(several: Sequence[JobMerge]) -> JobMerge:
    """One of several that share no rank. Associative and commutative."""
    ranks = [part for one in several for part in one.ranks]
    order = sorted(range(len(ranks)), key=lambda i: ranks[i].key)
    place = np.empty(len(ranks), np.int64)
    place[order] = np.arange(len(ranks))
    first = np.cumsum([0, *(len(one.ranks) for one in several)])
    blocks = [
        block
        for one, at in zip(several, first, strict=False)
        for block in renumbered(one.blocks, place[at : at + len(one.ranks)])
    ]
    sums = added([one.sums for one in several])
    return JobMerge(_bounded([ranks[i] for i in order]), sums, renumbered(blocks, np.arange(len(ranks))))


def undetailed(ranks: Sequence[RankPart]) -> list[Withheld]:
    """What is given of the outermost ranks only, and why."""
    if len(ranks) <= MOST_DETAILED:
        return []
    named = sum(map(_has_details, ranks))
    reason = f"of {len(ranks)} ranks only the {named} outermost are given in detail; sums are of all ranks"
    return [Withheld(field=DETAILS, reason=reason)]


def _bounded(ranks: list[RankPart]) -> list[RankPart]:
    if len(ranks) <= MOST_DETAILED:
        return ranks
    kept = _outermost(ranks)
    return [part if i in kept else _without_details(part) for i, part in enumerate(ranks)]


def _outermost(ranks: Sequence[RankPart]) -> set[int]:
    """The places of the ranks with the smallest and largest of each measure; of equal ranks the first."""
    found: set[int] = set()
    for of_ranks in zip(*map(_measures, ranks), strict=True):
        values = [(value, i) for i, value in enumerate(of_ranks) if value is not None]
        found |= {i for _, i in nsmallest(OUTERMOST, values)}
        found |= {i for _, i in nlargest(OUTERMOST, values, key=lambda each: (each[0], -each[1]))}
    return found


def _measures(part: RankPart) -> Iterator[float | None]:
    yield median(part.steps.durations_ns) if part.steps.durations_ns else None
    for name in ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns"):
        values = [getattr(device, name) for device in part.devices]
        yield sum(values) if values and None not in values else None


def _without_details(part: RankPart) -> RankPart:
    if not _has_details(part):
        return part
    launches = [row.model_copy(update={"calls": []}) for row in part.rows.launches]
    rows = part.rows.model_copy(update={"host_activities": [], "long_messages": [], "launches": launches})
    devices = [device.model_copy(update={name: [] for name in _OF_DEVICE}) for device in part.devices]
    source = part.source.model_copy(update={"device_names": {}})
    return part.model_copy(update={"source": source, "devices": devices, "rows": rows})


def _has_details(part: RankPart) -> bool:
    return bool(part.source.device_names or part.rows.host_activities) or any(
        getattr(device, name) for device in part.devices for name in _OF_DEVICE
    )
