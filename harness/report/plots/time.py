"""Figures from the page data of traces: the heatmap of all devices over time, and a pipeline's Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.analysis.summary import Summary
from harness.measure.page_data import BINS
from harness.measure.tracks import Pass
from harness.report.elements import Figure
from harness.report.palette import COMMUNICATION, COMPUTE, KINDS, OVERLAP
from harness.report.plots import plotly_json
from harness.report.tables.pipeline import stage_label
from harness.report.timeline.timeline_model import DeviceBins
from harness.traces.trace import F64

_MANY = 40  # most rows with a label; the pointer shows the names of the others


def heat_figure(bins: Sequence[DeviceBins], s: Summary) -> Figure | None:
    """The share of compute, communication and both in each interval of time: one row per device."""
    longest = max((d.window_ns for d in s.devices), default=0)
    if not bins or not longest:
        return None
    bin_ms = max(-(-longest // BINS), 1) / 1e6
    middles = [round((i + 0.5) * bin_ms, 4) for i in range(BINS)]
    labels = [f"rank {b.rank}" if b.rank is not None else f"device {b.device}" for b in bins]
    if len(set(labels)) < len(labels):
        labels = [f"{label}, device {b.device}" for label, b in zip(labels, bins, strict=True)]
    layers = (
        ("compute", COMPUTE, [b.compute for b in bins]),
        ("communication", COMMUNICATION, [b.communication for b in bins]),
        ("both at once", OVERLAP, [b.overlap for b in bins]),
    )
    data = [
        _layer(name, color, rows, middles, labels, visible=name == "compute") for name, color, rows in layers
    ]
    x = "time since each device's first profiled step (ms)"
    axes = plotly_json.layout(x, plotly_json.NAMES | {"nticks": _MANY})
    words = (
        f"Utilisation of {len(bins)} device{'s' * (len(bins) > 1)} over time, {bin_ms:.3g} ms a column. The buttons "
        "switch between compute, communication and both at once. Empty: the device's window has ended."
    )
    return Figure("heatmap", words, data, axes, _height(len(bins)), wide=True)


def _height(rows: int) -> int:
    """Pixels that suit two rows as well as a thousand."""
    return 150 + int(min(max(rows * (26 if rows <= 24 else 12 if rows <= 64 else 5), 60), 900))


def _layer(
    name: str, color: str, rows: Sequence[F64], x: list[float], y: list[str], *, visible: bool
) -> dict[str, Any]:
    z = [[None if np.isnan(v) else round(100 * v) for v in row.tolist()] for row in rows]
    return {
        "type": "heatmap",
        "name": name,
        "z": z,
        "x": x,
        "y": y,
        "colorscale": color,
        "zmin": 0,
        "zmax": 100,
        "visible": visible,
        "hovertemplate": "%{y}, %{x} ms: %{z} % " + name + "<extra></extra>",
        "colorbar": {"title": {"text": f"{name} (%)", "side": "right"}, "thickness": 12},
    }


def gantt_figure(passes: Sequence[Pass]) -> Figure | None:
    """Forward and backward of every micro-batch of one step, a row per stage."""
    if not passes:
        return None
    ordered = sorted(passes, key=lambda p: (p.stage, -1 if p.rank is None else p.rank))
    stages = list(dict.fromkeys(map(stage_label, ordered)))
    data = []
    for forward, name, color in ((True, "forward", COMPUTE), (False, "backward", KINDS["optimizer"])):
        mine = [p for p in passes if p.forward is forward]
        lengths = [round((p.end_ns - p.start_ns) / 1e6, 4) for p in mine]
        rows = list(map(stage_label, mine))
        data.append(
            plotly_json.bars(name, lengths, rows, color, base=[round(p.start_ns / 1e6, 4) for p in mine])
            | {
                "text": [str(p.number) for p in mine],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "hovertemplate": f"{name} of micro-batch %{{text}}: %{{x:.3f}} ms<extra>%{{y}}</extra>",
                "marker": {"color": color, "line": {"color": "rgba(255,255,255,0.8)", "width": 0.7}},
            }
        )
    y = {"type": "category", "categoryorder": "array", "categoryarray": stages,
         "autorange": "reversed", "automargin": True}  # fmt: skip
    x = "time since the step's start on each rank (ms)"
    axes = plotly_json.layout(x, y, barmode="overlay")
    words = (
        "One step of the pipeline: forward and backward of each numbered micro-batch. Empty time is bubble."
    )
    return Figure("pipeline-gantt", words, data, axes, plotly_json.bars_height(len(stages)), wide=True)
