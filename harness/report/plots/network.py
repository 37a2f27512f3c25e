"""The picture of the nodes' network: a row per node, or some nodes of one switch, a column per stretch of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from harness.analysis.job.pacing import natural
from harness.analysis.summary import NodeNetwork, Summary
from harness.format.format import amount
from harness.monitor.network import NicSeries, summed
from harness.report.elements import Figure
from harness.report.palette import COMMUNICATION
from harness.report.plots import plotly_json
from harness.traces.trace import F64

MOST_ROWS, MOST_COLUMNS = 256, 100  # at most 25,600 cells in each of two layers
_FEW = 40
_MARKS = 24
_LAYERS = (("sent", "sent_bytes"), ("received", "received_bytes"))


def network_figure(s: Summary, network: Mapping[str, Sequence[NicSeries]]) -> Figure | None:
    """GB/s of every node over time; None where the monitor has no rates, or only those of one node."""
    nodes = sorted(
        (n for n in s.network if n.node in network), key=lambda n: (natural(n.switch), natural(n.node))
    )
    if len(nodes) < 2:
        return None
    each = -(-len(nodes) // MOST_ROWS)
    rates = {name: [summed(network[n.node], column) for n in nodes] for name, column in _LAYERS}
    moments = [
        t for layer in rates.values() for line in layer for start, end, _ in line for t in (start, end)
    ]
    begin, end = min(moments), max(moments)
    columns = min(MOST_COLUMNS, max(len(line) for line in rates["sent"]))
    layers = {
        name: _joined(np.stack([_cells(line, begin, end, columns) for line in lines]), each)
        for name, lines in rates.items()
    }
    rows = [_name(nodes[i : i + each]) for i in range(0, len(nodes), each)]
    top = max(float(np.nanmax(layer)) for layer in layers.values())
    width_s = (end - begin) / 1e9 / columns
    x = [round((i + 0.5) * width_s, 3) for i in range(columns)]
    data = [_layer(name, cells, (x, rows), top, visible=name == "sent") for name, cells in layers.items()]
    axes = plotly_json.layout("time since the first sample (s)", _axis(nodes[::each], rows))
    height = 150 + int(
        min(max(len(rows) * (26 if len(rows) <= 24 else 14 if len(rows) <= _FEW else 5), 60), 900)
    )
    return Figure("network", _words(nodes, each, width_s), data, axes, height, wide=True)


def _words(nodes: Sequence[NodeNetwork], each: int, width_s: float) -> str:
    group = "by switch" if any(n.switch for n in nodes) else "by node; Slurm told of no switches"
    of = f" A row is the busiest of {each} nodes." if each > 1 else ""
    inside = " Loopback only: these nodes have no other port." if all(n.loopback for n in nodes) else ""
    peak = max(nodes, key=lambda n: n.peak_gb_per_s)
    return (
        f"Network of {len(nodes)} nodes, all ports of each together, {width_s:.3g} s a column, "
        f"grouped {group}.{of}{inside} The whole node's traffic, not the job's alone. Most at once: {peak.node}, "
        f"{amount(peak.peak_gb_per_s * 1e9, 'B/s')} in one direction."
    )


def _name(nodes: Sequence[NodeNetwork]) -> str:
    name = nodes[0].node if len(nodes) == 1 else f"{nodes[0].node} to {nodes[-1].node}"
    return f"{nodes[0].switch} · {name}" if nodes[0].switch else name


def _cells(rates: Sequence[tuple[int, int, float]], begin: int, end: int, columns: int) -> F64:
    """(columns,): GB/s, each rate in the columns that it covers, weighted by time; NaN where there is no sample."""
    moved, covered = np.zeros(columns), np.zeros(columns)
    width = max((end - begin) / columns, 1.0)
    for a, b, rate in rates:
        first, last = int((a - begin) / width), min(int((b - begin) / width), columns - 1)
        for i in range(min(first, columns - 1), last + 1):
            inside = min(b - begin, (i + 1) * width) - max(a - begin, i * width)
            moved[i] += max(inside, 0.0) * rate
            covered[i] += max(inside, 0.0)
    found: F64 = np.where(covered > 0, moved / np.where(covered > 0, covered, 1), np.nan) / 1e9
    return found


def _joined(cells: F64, each: int) -> F64:
    """The busiest of neighbouring nodes."""
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
    """Every row has its name where they are few; of many their switches, or some of the nodes."""
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
