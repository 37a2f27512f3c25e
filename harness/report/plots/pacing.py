"""The plot of pacing: a row per rank, node or group of nodes, below their switches; a column per step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from harness.analysis.summary import PaceHeat, Pacing
from harness.report.elements import Figure
from harness.report.plots import plotly_json
from harness.report.tables.pacing import how_grouped

SLOWER_AND_FASTER = "#4477aa,#d1495b"  # below the median and above it
_LAG = "#d1495b"
_LEAST_SHARE, _MOST_SHARE = 5.0, 50.0  # per cent: the colours' end is between these
_FEW = 40  # rows that have a name each; of more their switches or nodes have
_MARKS = 24  # most groups, and most places that are behind, with a name on the axis of many rows
_APART = 4  # rows between two names on it

Layer = tuple[str, list[list[float | None]], float, str, str]  # name, cells, the colours' end, unit, colours


def scale_of(paces: Sequence[Pacing]) -> tuple[float, float]:
    """The ends of the colour scales for these jobs: per cent, and milliseconds of lag. Two in a hundred cells are
    beyond the ends, but no outlier is."""
    heats = [pace.heat for pace in paces if pace.heat]
    shares = _far(
        [
            abs(100 * x)
            for h in heats
            for x in _cells([x for row in h.rows for x in (row.step_share, row.own_share)])
        ]
    )
    shares = max([shares, *(100 * x.behind_share for pace in paces for x in pace.outliers)])
    lags = _far([x / 1e3 for h in heats for x in _cells([row.lag_us for row in h.rows])])
    return min(max(shares, _LEAST_SHARE), _MOST_SHARE), max(lags, 1e-3)


def _cells(rows: Sequence[Sequence[float | None]]) -> list[float]:
    return [x for row in rows for x in row if x is not None]


def _far(values: list[float]) -> float:
    return sorted(values)[int(0.98 * (len(values) - 1))] if values else 0.0


def pace_figure(
    pace: Pacing, name: str = "pacing", title: str = "", ends: tuple[float, float] | None = None
) -> Figure | None:
    """The plot of one job. If several jobs share the colour scales, ends: their ends; title: the job's name."""
    heat = pace.heat
    if heat is None:
        return None
    share_end, lag_end = ends or scale_of([pace])
    layers: list[Layer] = [
        ("step time", _percents([row.step_share for row in heat.rows]), share_end, "%", SLOWER_AND_FASTER)
    ]
    if any(row.own_share for row in heat.rows):
        layers.append(
            ("own work", _percents([row.own_share for row in heat.rows]), share_end, "%", SLOWER_AND_FASTER)
        )
    if any(row.lag_us for row in heat.rows):
        cells = [[None if x is None else round(x / 1e3, 3) for x in row.lag_us] for row in heat.rows]
        layers.append(("lag at the step's end", cells, lag_end, "ms", _LAG))
    rows = _row_names(heat)
    data = [_layer(layer, heat, rows, visible=i == 0) for i, layer in enumerate(layers)]
    step = "step" if heat.steps_per_column == 1 else f"step, {heat.steps_per_column} a column"
    axes = plotly_json.layout(_steps(step, heat), _axis(pace, heat, rows), shapes=_borders(heat))
    words = f"{title}: {_words(pace, heat)}" if title else _words(pace, heat)
    return Figure(name, words, data, axes, _height(len(rows)), wide=True)


def _words(pace: Pacing, heat: PaceHeat) -> str:
    of = "" if heat.row == "rank" else f" Each row is {_a(heat.row)}: its slowest rank in each step."
    mean = f" Each column is the mean of {heat.steps_per_column} steps." if heat.steps_per_column > 1 else ""
    middle = "rank" if heat.row == "rank" else "row"
    return (
        f"{pace.ranks} ranks over {pace.steps} step{'s' * (pace.steps != 1)}, grouped {how_grouped(pace)}.{of}{mean} "
        f"Step time: red is slower than the median {middle} of that step, blue is faster. Own work: the step without "
        "exposed communication, so without waiting for others. Lag: time behind the first rank at the step's end."
    )


def _a(row: str) -> str:
    return f"a {row}" if row == "node" else row


def _percents(rows: list[list[float | None]]) -> list[list[float | None]]:
    return [[None if x is None else round(100 * x, 1) for x in row] for row in rows]


def _row_names(heat: PaceHeat) -> list[str]:
    """Names that all differ: with the node if ranks are shown, with the switch if it is known."""
    found = []
    for row in heat.rows:
        parts = (row.switch, row.node if heat.row == "rank" else None, row.name)
        found.append(" · ".join(filter(None, parts)))
    return found if len(set(found)) == len(found) else [f"{x} ({i})" for i, x in enumerate(found)]


def _layer(layer: Layer, heat: PaceHeat, rows: list[str], *, visible: bool) -> dict[str, Any]:
    name, cells, end, unit, colors = layer
    return {
        "type": "heatmap",
        "name": name,
        "z": cells,
        "x": heat.steps,
        "y": rows,
        "colorscale": colors,
        "zmin": -end if "," in colors else 0,
        "zmax": end,
        "visible": visible,
        "hovertemplate": "%{y}, step %{x}: %{z} " + unit + "<extra>" + name + "</extra>",
        "colorbar": {"title": {"text": f"{name} ({unit})", "side": "right"}, "thickness": 12},
    }


def _steps(title: str, heat: PaceHeat) -> dict[str, Any]:
    few = len(heat.steps) <= 12
    return plotly_json.axis(title, **({"tickvals": heat.steps, "tickmode": "array"} if few else {}))


def _groups(heat: PaceHeat) -> list[tuple[str | None, int, int]]:
    """The switches, else the nodes of ranks, each with its first row and the row after its last."""
    switches = [row.switch for row in heat.rows]
    names = switches if any(switches) else [row.node for row in heat.rows]
    found, at = [], 0
    for name, run in groupby(names):
        length = len(list(run))
        found.append((name, at, at + length))
        at += length
    return found


def _axis(pace: Pacing, heat: PaceHeat, rows: list[str]) -> dict[str, Any]:
    """Few rows have a name each. Of many rows, the outliers have one, and the groups, or some of the groups."""
    if len(rows) <= _FEW:
        return dict(plotly_json.NAMES)
    groups = [((a + b) // 2, name or "not known") for name, a, b in _groups(heat)]
    named: dict[int, str] = {}
    for i, name in (*_behind(pace, heat), *groups[:: -(-len(groups) // _MARKS)]):
        if all(abs(i - other) >= _APART for other in named):
            named[i] = name
    ticks = {"tickvals": [rows[i] for i in sorted(named)], "ticktext": [named[i] for i in sorted(named)]}
    return plotly_json.NAMES | {"tickmode": "array"} | ticks


def _behind(pace: Pacing, heat: PaceHeat) -> list[tuple[int, str]]:
    """The rows of the outliers, the slowest first, each with its name."""
    names = [row.name for row in heat.rows] if heat.row in ("rank", "node") else []
    place = {name: i for i, name in enumerate(names)}
    found = [str(x.node) if heat.row == "node" else f"rank {x.rank}" for x in pace.outliers[:_MARKS]]
    return [(place[name], f"▶ {name}") for name in dict.fromkeys(found) if name in place]


def _borders(heat: PaceHeat) -> list[dict[str, Any]]:
    """Lines between switches, or nodes, if they are few."""
    groups = _groups(heat)
    if not 1 < len(groups) <= _FEW:
        return []
    place = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
    line = {"color": "#888888", "width": 1}
    return [place | {"y0": b - 0.5, "y1": b - 0.5, "line": line} for _, _, b in groups[:-1]]


def _height(rows: int) -> int:
    """Pixels that suit two rows as well as 256."""
    return 150 + int(min(max(rows * (26 if rows <= 24 else 14 if rows <= _FEW else 5), 60), 900))
