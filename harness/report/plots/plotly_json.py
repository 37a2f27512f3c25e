"""Parts of Plotly's JSON: bars, lines, axes with units. Pure data, Plotly itself is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from harness.common.display.palette import COMMUNICATION
from harness.report.window import OVERLAPPED, PARTS, part_label

PlotTrace = dict[str, Any]
NAMES = {"autorange": "reversed", "automargin": True, "type": "category"}  # an axis of names, top to bottom


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def layout(x: str | dict[str, Any], y: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """The layout of a plot with these axes; a text is the title of its axis."""
    return {"xaxis": axis(x) if isinstance(x, str) else x, "yaxis": axis(y) if isinstance(y, str) else y, **more}


def line(name: str, x: Sequence[Any], y: Sequence[Any], color: str, **more: Any) -> PlotTrace:
    """A line; few points get a mark each."""
    mode = "lines+markers" if len(x) <= 80 else "lines"
    drawn: PlotTrace = {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y)}
    return drawn | {"line": {"color": color, "width": 1.8}, "marker": {"color": color, "size": 5}} | more


def band(low: float, high: float, color: str) -> dict[str, Any]:
    ends = {"xref": "x", "yref": "paper", "x0": low, "x1": high, "y0": 0, "y1": 1}
    return {"type": "rect", **ends, "fillcolor": color, "opacity": 0.16, "line": {"width": 0}, "layer": "below"}


def upright(at: float, color: str, dash: str, width: float) -> dict[str, Any]:
    ends = {"xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1}
    return {"type": "line", **ends, "line": {"color": color, "dash": dash, "width": width}}


def bars(name: str, values: Sequence[float], labels: Sequence[str], color: str, **more: Any) -> PlotTrace:
    """Horizontal bars, one per label, in milliseconds unless `hovertemplate` says otherwise."""
    hover = f"%{{y}}: %{{x:,.4~r}} ms<extra>{escape(name)}</extra>"
    drawn: PlotTrace = {"type": "bar", "orientation": "h", "name": name, "x": list(values), "y": list(labels)}
    return drawn | {"marker": {"color": color}, "hovertemplate": hover} | more


def percent_bars(name: str, percents: Sequence[float], labels: Sequence[str], color: str, **more: Any) -> PlotTrace:
    hover = f"%{{y}}: %{{x:.1f}} %<extra>{escape(name)}</extra>"
    return bars(name, percents, labels, color, hovertemplate=hover, **more)


def part_of_window(part: str, percents: Sequence[float], labels: Sequence[str], cpu: bool) -> PlotTrace:
    """Bars of one of the parts of several windows; hidden communication has stripes."""
    color = PARTS[part].color
    more = {"marker": stripes(color, COMMUNICATION)} if part == OVERLAPPED else {}
    return percent_bars(part_label(part, cpu), percents, labels, color, **more)


def stripes(color: str, across: str) -> dict[str, Any]:
    pattern = {"shape": "/", "fgcolor": across, "bgcolor": color, "size": 7, "solidity": 0.45}
    return {"color": color, "pattern": pattern}


def bars_height(count: int) -> int:
    """Pixels for `count` horizontal bars, readable from two to hundreds."""
    return 130 + (26 if count <= 24 else 14 if count <= 80 else 7) * max(count, 2)
