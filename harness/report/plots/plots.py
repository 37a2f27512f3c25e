"""The plots that have a row per rank, node or stage: pacing and one pipeline step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from harness.analysis.summary import PaceHeat, Pacing
from harness.common.display.palette import COMPUTE
from harness.measure.page_data import PipelinePass
from harness.report.elements import Figure
from harness.report.plots import plotly_json
from harness.report.tables.pace import how_grouped
from harness.report.tables.pipeline import stage_label

T = TypeVar("T")
_FEW = 40  # rows that have a name each
_MARKS = 24  # names of many rows
SLOWER_AND_FASTER = "#4477aa,#d1495b"  # below the median and above it
_LAG = "#d1495b"
_BACKWARD = "#7d6bc4"  # of a pipeline, beside the blue of its forward passes
_LEAST_SHARE, _MOST_SHARE = 5.0, 50.0  # per cent: the colours' end is between these


def distinct(names: list[str]) -> list[str]:
    """Plotly draws two rows with one name as one row."""
    return names if len(set(names)) == len(names) else [f"{name} ({i})" for i, name in enumerate(names)]


class Layer(NamedTuple):
    """A layer of a heatmap. end: the value at the colours' end. scale: a short title of the colour scale."""

    name: str
    cells: Sequence[Sequence[float | None]]
    unit: str
    colors: str
    end: float
    scale: str = ""


def heatmaps(layers: Sequence[Layer], x: Sequence[float], labels: Sequence[str], at: str) -> list[dict[str, Any]]:
    """The layers of a plot, of which the first is visible; `at`: the pointer's words for a cell and its layer."""
    return [
        {
            "type": "heatmap",
            "name": layer.name,
            "z": layer.cells,
            "x": x,
            "y": labels,
            "colorscale": layer.colors,
            "zmin": -layer.end if "," in layer.colors else 0,
            "zmax": layer.end,
            "visible": layer is layers[0],
            "hovertemplate": at.format(unit=layer.unit, name=layer.name),
            "colorbar": {
                "title": {"text": layer.scale or f"{layer.name} ({layer.unit})", "side": "right"},
                "thickness": 12,
            },
        }
        for layer in layers
    ]


def height_of(rows: int) -> int:
    """Pixels that suit two rows as well as a thousand."""
    return 150 + int(min(max(rows * (26 if rows <= 24 else 14 if rows <= _FEW else 5), 60), 900))


def _runs(names: Iterable[T]) -> list[tuple[T, int, int]]:
    """Equal neighbours: the name, its first place and the place after its last."""
    found, first = [], 0
    for name, run in groupby(names):
        after = first + len(list(run))
        found.append((name, first, after))
        first = after
    return found


def _pace_ends(pace: Pacing, heat: PaceHeat) -> tuple[float, float]:
    """The ends of the colour scales, per cent and milliseconds: beyond are 2 % of the cells, and no outlier."""
    share = 100 * _far(x for row in heat.rows for x in (*row.step_share, *row.own_share))
    share = max([share, *(100 * x.behind_share for x in pace.outliers)])
    lag_ms = _far(x for row in heat.rows for x in row.lag_us) / 1e3
    return min(max(share, _LEAST_SHARE), _MOST_SHARE), max(lag_ms, 1e-3)


def _far(values: Iterable[float | None]) -> float:
    known = sorted(abs(x) for x in values if x is not None)
    return known[int(0.98 * (len(known) - 1))] if known else 0.0


def pace_figure(pace: Pacing) -> Figure | None:
    """Who is behind in which step, a row per rank or node; None where only few steps are known."""
    heat = pace.heat
    if heat is None:
        return None
    share_end, lag_end = _pace_ends(pace, heat)
    shares = [("step time", [row.step_share for row in heat.rows])]
    if any(row.own_share for row in heat.rows):
        shares.append(("own work", [row.own_share for row in heat.rows]))
    layers = [Layer(layer, _scaled(rows, 100, 1), "%", SLOWER_AND_FASTER, share_end) for layer, rows in shares]
    if any(row.lag_us for row in heat.rows):
        lags = _scaled([row.lag_us for row in heat.rows], 1e-3, 3)
        layers.append(Layer("lag at the step's end", lags, "ms", _LAG, lag_end))
    rows = _row_names(heat)
    data = heatmaps(layers, heat.steps, rows, "%{{y}}, step %{{x}}: %{{z}} {unit}<extra>{name}</extra>")
    step = "step" if heat.steps_per_column == 1 else f"step, {heat.steps_per_column} a column"
    few = {"tickvals": heat.steps, "tickmode": "array"} if len(heat.steps) <= 12 else {}
    x = plotly_json.axis(step, **few)
    axes = plotly_json.layout(x, _pace_axis(heat, rows))
    return Figure("pacing", _pace_words(pace, heat), data, axes, height_of(len(rows)), wide=True)


def _pace_words(pace: Pacing, heat: PaceHeat) -> str:
    of = "" if heat.row == "rank" else " Each row is a node: its slowest rank in each step."
    if heat.row == "node" and len(heat.rows) < pace.nodes_count:
        of += f" Of {pace.nodes_count} nodes those that are farthest behind are shown."
    mean = f" Each column is the mean of {heat.steps_per_column} steps." if heat.steps_per_column > 1 else ""
    middle = "rank" if heat.row == "rank" else "row"
    return (
        f"{pace.ranks} ranks over {pace.steps} step{'s' * (pace.steps != 1)}, grouped {how_grouped(pace)}.{of}{mean} "
        f"Step time: red is slower than the median {middle} of that step, blue is faster. Own work: the step without "
        "exposed communication, so without waiting for others. Lag: time behind the first rank at the step's end."
    )


def _scaled(rows: Sequence[Sequence[float | None]], factor: float, digits: int) -> list[list[float | None]]:
    return [[None if x is None else round(factor * x, digits) for x in row] for row in rows]


def _row_names(heat: PaceHeat) -> list[str]:
    """Names that all differ: with the node if ranks are shown, with the switch if it is known."""
    parts = ((row.switch, row.node if heat.row == "rank" else None, row.name) for row in heat.rows)
    return distinct([" · ".join(filter(None, each)) for each in parts])


def _groups(heat: PaceHeat) -> list[tuple[str | None, int, int]]:
    """The switches, else the nodes of ranks, each with its first row and the row after its last."""
    switches = [row.switch for row in heat.rows]
    return _runs(switches if any(switches) else [row.node for row in heat.rows])


def _pace_axis(heat: PaceHeat, labels: list[str]) -> dict[str, Any]:
    """Few rows have a name each. Of many rows, their groups have one, or some of the groups."""
    if len(labels) <= _FEW:
        return dict(plotly_json.NAMES)
    groups = [(labels[(a + b) // 2], name or "not known") for name, a, b in _groups(heat)]
    shown = groups[:: -(-len(groups) // _MARKS)]
    ticks = {"tickvals": [row for row, _ in shown], "ticktext": [name for _, name in shown]}
    return plotly_json.NAMES | {"tickmode": "array"} | ticks


def gantt_figure(passes: Sequence[PipelinePass]) -> Figure | None:
    """Forward and backward of every micro-batch of one step, a row per stage."""
    if not passes:
        return None
    ordered = sorted(passes, key=lambda p: (p.stage, -1 if p.rank is None else p.rank))
    stages = list(dict.fromkeys(map(stage_label, ordered)))
    data = []
    for forward, name, color in ((True, "forward", COMPUTE), (False, "backward", _BACKWARD)):
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
    words = "One step of the pipeline: forward and backward of each numbered micro-batch. Empty time is bubble."
    return Figure("pipeline-gantt", words, data, axes, plotly_json.bars_height(len(stages)), wide=True)
