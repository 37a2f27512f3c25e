"""Who is behind: a rule that names nobody in 99 of 100 jobs whose places differ by chance only.

A place is named if it is behind the median place by LEAST of a step, and by FAR spreads, in PERSISTENT of the steps.
The spread (1.4826 median absolute deviations) is that of the single steps: of all places, or of fewer than
FEWEST_FOR_SPREAD of the place's own. 90 % of the values of a normal distribution are above its mean less 1.28 standard
deviations, so that a place's mean is 4.3 of them behind. Values of few steps, or of few places, say nothing of a
spread: of fewer than FEWEST_STEPS steps, or FEWEST_VALUES values, nobody is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from harness.analysis.onsets import spread
from harness.analysis.process.part import RankPart
from harness.analysis.summary import PaceOutlier, PacePlace, Pacing
from harness.traces.trace import F64, I64

LEAST = 0.05
PERSISTENT = 0.9
FAR = 3.0
FEWEST_FOR_SPREAD = 8
FEWEST_STEPS, FEWEST_VALUES = 5, 40
MOST_STEPS = 400  # compared; of more these many, evenly spaced
MOST_PLACES = 1024  # of a larger job those farthest from the middle
MOST_OUTLIERS = 64
MANY_NODES = 8  # of fewer nodes the ranks are judged too, and are the places


def outlying(behind: F64) -> I64:
    """The lines of (places, steps) that are behind the others, the farthest first. behind: shares of the median place,
    NaN where not known."""
    known = behind[:, ~np.isnan(behind).any(axis=0)]
    places, steps = known.shape
    if places < 2 or steps < FEWEST_STEPS or known.size < FEWEST_VALUES:
        return np.empty(0, np.int64)
    many = places >= FEWEST_FOR_SPREAD
    noise = np.array([spread(known)] if many else [spread(row) for row in known])
    least = np.sort(known, axis=1)[:, steps - ceil(PERSISTENT * steps)]
    named = np.flatnonzero(least >= np.maximum(LEAST, FAR * noise))
    return named[np.argsort(-np.median(known[named], axis=1), kind="stable")]


@dataclass(frozen=True)
class PaceTable:
    """r ranks by s steps. Unknown is NaN. rank (r,): -1 where not known; stage (r,): ranks with the same number do the
    same work."""

    steps: I64
    step_ns: F64
    own_ns: F64
    rank: I64
    stage: I64
    node: list[str | None]


def pace_table(parts: Sequence[RankPart]) -> PaceTable | None:
    """None: fewer than two ranks have steps of one kind, or they have none in common."""
    sources = {part.steps.source for part in parts if part.steps.durations_ns}
    known = [part for part in parts if _is_whole(part)]
    if len(known) < 2 or len(sources) != 1:
        return None
    steps = _common([part.steps.numbers for part in known])
    if not len(steps):
        return None
    step, own = np.moveaxis(np.stack([_line(part, steps) for part in known]), 1, 0)
    return PaceTable(
        steps=steps,
        step_ns=step,
        own_ns=own,
        rank=np.array([-1 if part.source.rank is None else part.source.rank for part in known], np.int64),
        stage=_stages(known),
        node=[part.source.host for part in known],
    )


def _is_whole(part: RankPart) -> bool:
    """Whether every step has its number, as in a file that was changed it may not."""
    return 0 < len(part.steps.durations_ns) == len(part.steps.numbers)


def from_zero(numbers: Sequence[int]) -> list[int]:
    """Steps' numbers; those that nothing numbers, which count up to -1, count from 0."""
    return [n - min(numbers[0], 0) for n in numbers]


def _common(numbers: Sequence[Sequence[int]]) -> I64:
    """The numbers of the steps that at least half of the ranks counted, in order, at most MOST_STEPS."""
    found, counts = np.unique(np.concatenate([np.array(own, np.int64) for own in numbers]), return_counts=True)
    steps = found[2 * counts >= len(numbers)]
    if len(steps) > MOST_STEPS:
        steps = steps[np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(np.int64)]
    return steps


def _line(part: RankPart, steps: I64) -> F64:
    """(2, s): durations and own work of one rank."""
    own = part.steps
    line = np.full((2, len(steps)), np.nan)
    numbers = np.array(own.numbers, np.int64)
    order = np.argsort(numbers, kind="stable")
    place = np.searchsorted(numbers[order], steps).clip(max=len(numbers) - 1)
    row = order[place]
    seen = numbers[row] == steps
    line[0, seen] = np.array(own.durations_ns, np.float64)[row[seen]]
    if len(own.own_ns) == len(numbers):
        line[1, seen] = np.array(own.own_ns, np.float64)[row[seen]]
    return line


def _stages(parts: Sequence[RankPart]) -> I64:
    """A number for each set of pipeline stages that ranks have."""
    stages = [tuple(part.stage.stages) if part.stage is not None else () for part in parts]
    order = {stage: i for i, stage in enumerate(sorted(set(stages)))}
    return np.array([order[stage] for stage in stages], np.int64)


def middle(values: F64) -> F64:
    """(s,) of (n, s): the middle of each column; of an even number the smaller of the two, so that of two the faster
    is the measure of the slower. NaN is left out."""
    count = (~np.isnan(values)).sum(axis=0)
    at = np.maximum((count - 1) // 2, 0)
    found: F64 = np.take_along_axis(np.sort(values, axis=0), at[None], axis=0)[0]
    return found


def behind(values: F64, alike: NDArray[np.int64]) -> F64:
    """(n, s): by how much each line is above the middle of those that do the same work, as a share of it."""
    found = np.full(values.shape, np.nan)
    for group in np.unique(alike):
        rows = alike == group
        usual = middle(values[rows])
        found[rows] = values[rows] / np.where(usual > 0, usual, np.nan) - 1
    return found


def largest(values: F64, of: NDArray[np.int64], count: int) -> F64:
    """(count, s) of (n, s): the largest of the lines of each group; NaN where none is known."""
    found = np.full((count, values.shape[1]), -np.inf)
    np.maximum.at(found, of, np.where(np.isnan(values), -np.inf, values))
    return np.where(np.isinf(found), np.nan, found)


@dataclass(frozen=True)
class _RankGroup:
    """Ranks by place. of: (r,), each rank's place. nodes, switches: of each place."""

    of: I64
    nodes: list[str | None]
    switches: list[str | None]

    def __len__(self) -> int:
        return len(self.nodes)


def pacing(parts: Sequence[RankPart], switches: Mapping[str, str] | None = None) -> Pacing | None:
    """The pacing of a job; None where fewer than two ranks have a step in common. switches: of each host, as far as
    Slurm told."""
    table = pace_table(parts)
    if table is None:
        return None
    known = switches or {}  # by a node's name, or by its first word where one of the two has the whole domain
    switch = [None if node is None else known.get(node, known.get(node.partition(".")[0])) for node in table.node]
    nodes = _by(table, switch, table.node)
    ranks = _by(table, switch, list(range(len(table.rank))))
    many = len(set(table.node) - {None}) >= MANY_NODES
    shares = behind(table.step_ns, table.stage), behind(table.own_ns, table.stage)
    outliers = _outliers(table, nodes, ranks, shares)
    return Pacing(
        places=_places(table, nodes if many else ranks, shares),
        outlier_count=len(outliers),
        outliers=outliers[:MOST_OUTLIERS],
    )


def _by(table: PaceTable, switch: Sequence[str | None], key: Sequence[object]) -> _RankGroup:
    """The ranks by the key, in the order of switch, node and rank."""
    order = sorted(range(len(key)), key=lambda i: (natural(switch[i]), natural(table.node[i]), int(table.rank[i]), i))
    first = {key[i]: i for i in reversed(order)}
    found = [i for i in order if first[key[i]] == i]
    number = {key[i]: n for n, i in enumerate(found)}
    of = np.array([number[each] for each in key], np.int64)
    return _RankGroup(of, [table.node[i] for i in found], [switch[i] for i in found])


def natural(name: str | None) -> list[tuple[int, int, str]]:
    """The order of names: node2 before node10; unknown last."""
    if name is None:
        return [(2, 0, "")]
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in re.findall(r"[0-9]+|[^0-9]+", name)]


def _recentred(share: F64) -> F64:
    """Above the median place instead of above the median rank: the slowest of four ranks is slower than one."""
    return (1 + share) / (1 + middle(share)) - 1


def _outliers(table: PaceTable, by_node: _RankGroup, by_rank: _RankGroup, shares: tuple[F64, F64]) -> list[PaceOutlier]:
    """The nodes that are behind; of few nodes also the ranks that are, on nodes that are not. The farthest first."""
    of_nodes = _outlying(table, by_node, "node", shares) if len(by_node) > 1 else []
    if len(by_node) >= MANY_NODES:
        return of_nodes
    named = {outlier.node for outlier in of_nodes}
    of_ranks = [outlier for outlier in _outlying(table, by_rank, "rank", shares) if outlier.node not in named]
    return sorted([*of_nodes, *of_ranks], key=lambda outlier: -outlier.behind_share)


def _outlying(table: PaceTable, rank_group: _RankGroup, group_kind: str, shares: tuple[F64, F64]) -> list[PaceOutlier]:
    """Those of either measure, the farthest first; a place once, by its step where that is behind."""
    found: dict[int, PaceOutlier] = {}
    for measure, share in zip(("step", "own work"), shares, strict=True):
        of_place = _recentred(largest(share, rank_group.of, len(rank_group)))
        for i in map(int, outlying(of_place)):
            line = of_place[i][~np.isnan(of_place[i])]
            outlier = PaceOutlier(
                place=group_kind,
                node=rank_group.nodes[i],
                switch=rank_group.switches[i],
                rank=_slowest(table, share, rank_group.of == i),
                measure=measure,
                behind_share=round(float(np.median(line)), 4),
                steps_behind=int((line >= LEAST).sum()),
                steps=len(line),
            )
            found.setdefault(i, outlier)
    return sorted(found.values(), key=lambda outlier: -outlier.behind_share)


def _slowest(table: PaceTable, share: F64, rows: NDArray[np.bool_]) -> int | None:
    """The rank of these that is farthest behind in the middle step."""
    usual = [_median(share[i]) for i in np.flatnonzero(rows)]
    rank = int(table.rank[np.flatnonzero(rows)[int(np.argmax([-np.inf if x is None else x for x in usual]))]])
    return None if rank < 0 else rank


def _places(table: PaceTable, rank_group: _RankGroup, shares: tuple[F64, F64]) -> list[PacePlace]:
    judged = [_recentred(largest(share, rank_group.of, len(rank_group))) for share in shares]
    decisive = 1 if not np.isnan(judged[1]).all() else 0
    usual = [[_median(line) for line in share] for share in judged]
    chosen = [i for i in range(len(rank_group)) if usual[0][i] is not None]
    if len(chosen) > MOST_PLACES:
        far = sorted(chosen, key=lambda i: -max(abs(each[i] or 0.0) for each in usual))
        chosen = sorted(far[:MOST_PLACES])
    return [
        PacePlace(
            node=rank_group.nodes[i],
            switch=rank_group.switches[i],
            rank=_slowest(table, shares[decisive], rank_group.of == i),
            step_share=round(usual[0][i] or 0.0, 4),
            own_share=_rounded(usual[1][i]),
        )
        for i in chosen
    ]


def _median(row: F64) -> float | None:
    known = row[~np.isnan(row)]
    return float(np.median(known)) if len(known) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), 4)
