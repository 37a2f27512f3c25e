"""How evenly ranks go through the same steps: who is behind, by how much, and a picture of bounded size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.pace_rule import LEAST, outlying
from harness.analysis.job.pace_table import PaceTable, behind, largest, middle, pace_table
from harness.analysis.process.part import RankPart
from harness.analysis.summary import Clock, PaceHeat, PaceOutlier, PacePlace, PaceRow, Pacing
from harness.traces.trace import F64, I64

MOST_ROWS, MOST_COLUMNS = (
    256,
    100,
)  # of the picture: a summary has at most 25,600 cells of each of its three layers
MOST_PLACES = 1024  # of a larger job those farthest from the middle
MOST_OUTLIERS = 64
MANY_NODES = 8  # of fewer nodes the ranks are judged too, and are the places


@dataclass(frozen=True)
class _Group:
    """Ranks by place. of (r,): each rank's place. nodes, switches: of each place; ranks: as in the table."""

    of: I64
    nodes: list[str | None]
    switches: list[str | None]

    def __len__(self) -> int:
        return len(self.nodes)


def pacing(
    parts: Sequence[RankPart], clocks: Mapping[str, Clock], switches: Mapping[str, str] | None = None
) -> Pacing | None:
    """The pacing of a job; None where fewer than two ranks have a step in common. switches: of each host, as far as
    Slurm told."""
    table = pace_table(parts, clocks)
    if table is None:
        return None
    switch = [_switch_of(node, switches or {}) for node in table.node]
    nodes = _by(table, switch, table.node)
    ranks = _by(table, switch, list(range(len(table.rank))))
    many = len(set(table.node) - {None}) >= MANY_NODES
    shares = behind(table.step_ns, table.stage), behind(table.own_ns, table.stage)
    outliers = _outliers(table, nodes, ranks, shares)
    return Pacing(
        ranks=len(table.rank),
        nodes_count=len(set(table.node) - {None}),
        switches_count=len(set(switch) - {None}),
        steps=len(table.steps),
        place="node" if many else "rank",
        step_ns=round(float(np.nanmedian(table.step_ns))),
        own_ns=None if np.isnan(table.own_ns).all() else round(float(np.nanmedian(table.own_ns))),
        places=_places(table, nodes if many else ranks, shares),
        outlier_count=len(outliers),
        outliers=outliers[:MOST_OUTLIERS],
        heat=_heat(table, switch, *shares),
    )


def _switch_of(node: str | None, switches: Mapping[str, str]) -> str | None:
    """By the node's name, or by its first word where one of the two has the whole domain."""
    return None if node is None else switches.get(node, switches.get(node.partition(".")[0]))


def _by(table: PaceTable, switch: Sequence[str | None], key: Sequence[object]) -> _Group:
    """The ranks by the key, in the order of switch, node and rank."""
    order = sorted(
        range(len(key)), key=lambda i: (natural(switch[i]), natural(table.node[i]), int(table.rank[i]), i)
    )
    first = {key[i]: i for i in reversed(order)}
    found = [i for i in order if first[key[i]] == i]
    number = {key[i]: n for n, i in enumerate(found)}
    of = np.array([number[each] for each in key], np.int64)
    return _Group(of, [table.node[i] for i in found], [switch[i] for i in found])


def natural(name: str | None) -> list[tuple[int, int, str]]:
    """The order of names: node2 before node10; unknown last."""
    if name is None:
        return [(2, 0, "")]
    return [
        (0, int(word), "") if word.isdigit() else (1, 0, word) for word in re.findall(r"[0-9]+|[^0-9]+", name)
    ]


def _recentred(share: F64) -> F64:
    """Above the median place instead of above the median rank: the slowest of four ranks is slower than one."""
    return (1 + share) / (1 + middle(share)) - 1


def _outliers(table: PaceTable, nodes: _Group, ranks: _Group, shares: tuple[F64, F64]) -> list[PaceOutlier]:
    """The nodes that are behind; of few nodes also the ranks that are, on nodes that are not. The farthest first."""
    of_nodes = _outlying(table, nodes, "node", shares) if len(nodes) > 1 else []
    if len(nodes) >= MANY_NODES:
        return of_nodes
    named = {outlier.node for outlier in of_nodes}
    of_ranks = [outlier for outlier in _outlying(table, ranks, "rank", shares) if outlier.node not in named]
    return sorted([*of_nodes, *of_ranks], key=lambda outlier: -outlier.behind_share)


def _outlying(table: PaceTable, places: _Group, place: str, shares: tuple[F64, F64]) -> list[PaceOutlier]:
    """Those of either measure, the farthest first; a place once, by its step where that is behind."""
    found: dict[int, PaceOutlier] = {}
    for measure, share in zip(("step", "own work"), shares, strict=True):
        of_place = _recentred(largest(share, places.of, len(places)))
        for i in map(int, outlying(of_place)):
            line = of_place[i][~np.isnan(of_place[i])]
            outlier = PaceOutlier(
                place=place,
                node=places.nodes[i],
                switch=places.switches[i],
                rank=_slowest(table, share, places.of == i),
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


def _places(table: PaceTable, places: _Group, shares: tuple[F64, F64]) -> list[PacePlace]:
    judged = [_recentred(largest(share, places.of, len(places))) for share in shares]
    lag = _lags(table)
    variation = _variation(table.step_ns)
    decisive = 1 if not np.isnan(judged[1]).all() else 0
    usual = [[_median(line) for line in share] for share in judged]
    chosen = [i for i in range(len(places)) if usual[0][i] is not None]
    if len(chosen) > MOST_PLACES:
        far = sorted(chosen, key=lambda i: -max(abs(each[i] or 0.0) for each in usual))
        chosen = sorted(far[:MOST_PLACES])
    rows = {i: np.flatnonzero(places.of == i) for i in chosen}
    return [
        PacePlace(
            node=places.nodes[i],
            switch=places.switches[i],
            rank=_slowest(table, shares[decisive], places.of == i),
            ranks=len(rows[i]),
            first_lag_ns=_largest(lag[0][rows[i]]),
            lag_ns=_largest(lag[1][rows[i]]),
            variation_fraction=_rounded(float(np.max(variation[rows[i]]))),
            step_share=round(usual[0][i] or 0.0, 4),
            own_share=_rounded(usual[1][i]),
        )
        for i in chosen
    ]


def _lags(table: PaceTable) -> tuple[F64, F64]:
    """Of each rank (r,): behind the first at the start of the first common step, and at the end of the last."""
    whole = np.flatnonzero(~np.isnan(table.end_ns).any(axis=0))
    if not len(whole):
        unknown = np.full(len(table.rank), np.nan)
        return unknown, unknown
    begin, end = table.begin_ns[:, whole[0]], table.end_ns[:, whole[-1]]
    return begin - begin.min(), end - end.min()


def _variation(step_ns: F64) -> F64:
    """(r,): the coefficient of variation of each rank's steps, by the sample's standard deviation; NaN of one step."""
    count = (~np.isnan(step_ns)).sum(axis=1)
    mean = np.nansum(step_ns, axis=1) / np.maximum(count, 1)
    squares = np.nansum((step_ns - mean[:, None]) ** 2, axis=1)
    found: F64 = np.where(
        count > 1, np.sqrt(squares / np.maximum(count - 1, 1)) / np.maximum(mean, 1), np.nan
    )
    return found


def _heat(table: PaceTable, switch: Sequence[str | None], step: F64, own: F64) -> PaceHeat:
    rows, what, labels = _rows(table, switch)
    each = -(-len(table.steps) // MOST_COLUMNS)
    count = len(rows)
    whole = ~np.isnan(table.end_ns).any(axis=0)
    lag = np.where(whole, table.end_ns - np.min(table.end_ns, axis=0), np.nan)
    shown = [largest(layer, rows.of, count) for layer in (step, own, lag / 1e3)]  # the last in microseconds
    layers = [_columns(layer, each) for layer in (*map(_recentred, shown[:2]), shown[2])]
    return PaceHeat(
        row=what,
        steps=table.steps[::each].tolist(),
        steps_per_column=each,
        rows=[
            PaceRow(
                name=name,
                node=rows.nodes[i],
                switch=rows.switches[i],
                step_share=_cells(layers[0], i, 4),
                own_share=_cells(layers[1], i, 4),
                lag_us=[None if x is None else round(x) for x in _cells(layers[2], i, 0)],
            )
            for i, name in enumerate(labels)
        ],
    )


def _cells(layer: F64, row: int, digits: int) -> list[float | None]:
    """One row; empty where nothing of the layer is known."""
    if np.isnan(layer).all():
        return []
    return [None if np.isnan(x) else round(x, digits) for x in layer[row].tolist()]


def _rows(table: PaceTable, switch: Sequence[str | None]) -> tuple[_Group, str, list[str]]:
    """Ranks, or nodes, or neighbouring nodes of one switch, as few together as fit; what a row is; labels."""
    ranks = _by(table, switch, list(range(len(table.rank))))
    if len(ranks) <= MOST_ROWS:
        place = np.argsort(ranks.of, kind="stable")
        labels = [f"rank {table.rank[i]}" if table.rank[i] >= 0 else f"process {i}" for i in place]
        return ranks, "rank", labels
    nodes = _by(table, switch, table.node)
    if len(nodes) == 1:
        return _joined(ranks, [f"rank {rank}" for rank in sorted(table.rank)], "ranks")
    names = [node or "node not known" for node in nodes.nodes]
    return (nodes, "node", names) if len(nodes) <= MOST_ROWS else _joined(nodes, names, "nodes")


def _joined(places: _Group, names: Sequence[str], word: str) -> tuple[_Group, str, list[str]]:
    """Neighbours of one switch as one row each, of as few places as fit; of more switches than rows, of any."""
    runs = [len(list(run)) for _, run in groupby(places.switches)]
    if len(runs) > MOST_ROWS:
        runs = [len(places)]
    each = next(n for n in range(1, len(places) + 1) if sum(-(-run // n) for run in runs) <= MOST_ROWS)
    first = [
        start + at
        for start, run in zip(np.cumsum([0, *runs]), runs, strict=False)
        for at in range(0, run, each)
    ]
    row = np.searchsorted(first, np.arange(len(places)), side="right") - 1
    last = [*(at - 1 for at in first[1:]), len(places) - 1]
    labels = [names[a] if a == b else f"{names[a]} to {names[b]}" for a, b in zip(first, last, strict=True)]
    group = _Group(row[places.of], [places.nodes[a] for a in first], [places.switches[a] for a in first])
    return group, f"{each} {word}", labels


def _columns(layer: F64, each: int) -> F64:
    """(n, columns): the mean of every `each` steps; NaN where none is known."""
    filled = np.pad(layer, ((0, 0), (0, -layer.shape[1] % each)), constant_values=np.nan)
    cells = filled.reshape(len(layer), -1, each)
    count = (~np.isnan(cells)).sum(axis=2)
    found: F64 = np.where(count > 0, np.nansum(cells, axis=2) / np.maximum(count, 1), np.nan)
    return found


def _median(line: F64) -> float | None:
    known = line[~np.isnan(line)]
    return float(np.median(known)) if len(known) else None


def _largest(values: F64) -> int | None:
    return None if np.isnan(values).any() else round(float(np.max(values)))


def _rounded(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), 4)
