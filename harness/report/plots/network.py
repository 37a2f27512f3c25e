"""The plot of the nodes' network: a row per node, or some nodes of one switch, a column per interval of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from harness.analysis.job.pacing import natural
from harness.analysis.network import binned, rates_over_time
from harness.analysis.summary import NetworkOverTime, NodeNetwork, Summary
from harness.analysis.summary.machine import MOST_COLUMNS
from harness.format.format import amount
from harness.report.elements import Figure
from harness.report.palette import COMMUNICATION
from harness.report.plots import plotly_json
from harness.traces.trace import F64

MOST_ROWS = 256  # at most 25,600 cells in each of two layers
_FEW = 40
_MARKS = 24
_LAYERS: tuple[tuple[str, Callable[[NetworkOverTime], Sequence[float | None]]], ...] = (
    ("sent", lambda o: o.sent_gb_per_s),
    ("received", lambda o: o.received_gb_per_s),
)
_BY = {"monitor": "the monitor", "nsys": "nsys"}


def drawn_nodes(s: Summary) -> list[NodeNetwork]:
    """The nodes of the plot, below their switches. They have one source of samples: nsys, whose samples are finer, if
    it has as many nodes as the monitor. None if fewer than two nodes have rates over time."""
    by = {
        source: [n for n in s.network if n.over_time and n.sampled_by == source]
        for source in ("nsys", "monitor")
    }
    most = max(by.values(), key=len)  # the first of equals
    return sorted(most, key=lambda n: (natural(n.switch), natural(n.node))) if len(most) > 1 else []


def scale_of(summaries: Sequence[Summary]) -> float:
    """The highest mean rate of a column of any node, GB/s: the end of the colour scale that several jobs share."""
    found = (n.over_time for s in summaries for n in drawn_nodes(s) if n.over_time)
    return max((x or 0.0 for o in found for x in (*o.sent_gb_per_s, *o.received_gb_per_s)), default=0.0)


def network_figure(
    s: Summary, name: str = "network", title: str = "", top: float | None = None
) -> Figure | None:
    """GB/s of every node over time; None if there are no rates, or only those of one node. title and top: the job's
    name and the end of the colour scale, if several jobs share the scale."""
    nodes = drawn_nodes(s)
    over = [n.over_time for n in nodes if n.over_time]
    if not over:
        return None
    each = -(-len(nodes) // MOST_ROWS)
    begin = min(o.start_ns for o in over)
    end = max(o.start_ns + o.column_ns * len(o.sent_gb_per_s) for o in over)
    columns = min(MOST_COLUMNS, max(len(o.sent_gb_per_s) for o in over))
    width_ns = -(-(end - begin) // columns)
    layers = {
        layer: _joined(
            np.stack([binned(rates_over_time(o, values(o)), begin, width_ns, columns) for o in over]), each
        )
        for layer, values in _LAYERS
    }
    rows = [_name(nodes[i : i + each]) for i in range(0, len(nodes), each)]
    end_of_colours = scale_of([s]) if top is None else top
    x = [round((i + 0.5) * width_ns / 1e9, 3) for i in range(columns)]
    data = [
        _layer(layer, cells, (x, rows), end_of_colours, visible=layer == "sent")
        for layer, cells in layers.items()
    ]
    axes = plotly_json.layout("time since the first sample (s)", _axis(nodes[::each], rows))
    height = 150 + int(
        min(max(len(rows) * (26 if len(rows) <= 24 else 14 if len(rows) <= _FEW else 5), 60), 900)
    )
    words = _words(nodes, each, width_ns / 1e9)
    return Figure(name, f"{title}: {words}" if title else words, data, axes, height, wide=True)


def _words(nodes: Sequence[NodeNetwork], each: int, width_s: float) -> str:
    group = "by switch" if any(n.switch for n in nodes) else "by node (Slurm named no switches)"
    of = f" Each row is the busiest of {each} nodes." if each > 1 else ""
    inside = " Loopback only: these nodes have no other port." if all(n.loopback for n in nodes) else ""
    peak = max(nodes, key=lambda n: n.peak_gb_per_s)
    return (
        f"Network of {len(nodes)} nodes, sampled by {_BY[nodes[0].sampled_by]}: the sum of all ports of a node, "
        f"{width_s:.3g} s a column, grouped {group}.{of}{inside} It is all traffic of the node, not only the job's. "
        f"Highest: {peak.node}, {amount(peak.peak_gb_per_s * 1e9, 'B/s')} in one direction."
    )


def _name(nodes: Sequence[NodeNetwork]) -> str:
    name = nodes[0].node if len(nodes) == 1 else f"{nodes[0].node} to {nodes[-1].node}"
    return f"{nodes[0].switch} · {name}" if nodes[0].switch else name


def _joined(cells: F64, each: int) -> F64:
    """The busiest of each group of neighbouring nodes."""
    return np.stack([np.fmax.reduce(cells[i : i + each], axis=0) for i in range(0, len(cells), each)])


def _layer(
    name: str, cells: F64, axes: tuple[list[float], list[str]], top: float, *, visible: bool
) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "name": name,
        "z": [[None if np.isnan(v) else float(f"{v:.4g}") for v in row] for row in cells.tolist()],
        "x": axes[0],
        "y": axes[1],
        "colorscale": COMMUNICATION,
        "zmin": 0,
        "zmax": top or 1e-9,
        "visible": visible,
        "hovertemplate": "%{y}, %{x} s: %{z} GB/s " + name + "<extra></extra>",
        "colorbar": {"title": {"text": f"{name} (GB/s)", "side": "right"}, "thickness": 12},
    }


def _axis(nodes: Sequence[NodeNetwork], rows: list[str]) -> dict[str, Any]:
    """Few rows have a name each. Of many rows, their switches have one, or some of the nodes."""
    if len(rows) <= _FEW:
        return dict(plotly_json.NAMES)
    groups, at = [], 0
    for name, run in groupby(n.switch or n.node for n in nodes):
        length = len(list(run))
        groups.append((rows[at + length // 2], name))
        at += length
    shown = groups[:: -(-len(groups) // _MARKS)]
    ticks = {"tickvals": [row for row, _ in shown], "ticktext": [name for _, name in shown]}
    return plotly_json.NAMES | {"tickmode": "array"} | ticks
