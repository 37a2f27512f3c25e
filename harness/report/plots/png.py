"""Plots as PNG by matplotlib, in one style. A text between two dollar signs is no formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas

from harness.common.errors import WorkError
from harness.common.printable import printable_value
from harness.report.elements import Figure

_PIXELS_PER_INCH = 96
DPI = 160
INK = "#1b2129"
_Trace = dict[str, Any]


def plain(text: str) -> str:
    """The text in which every dollar sign is only a dollar sign.

    >>> plain("$x$ and $frac")
    '\\\\$x\\\\$ and \\\\$frac'
    """
    return text.replace("$", r"\$")


def plain_values(value: Any) -> Any:
    """Plotly's JSON with each of its texts so."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {name: plain_values(inner) for name, inner in value.items()}
    return [plain_values(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def write_pngs(figures: Sequence[Figure], folder: Path, prefix: str = "") -> list[Path]:
    """Write `folder`/<prefix><id>.png of each figure; returns the paths. Raises WorkError: it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_write(figure, folder / f"{prefix}{figure.id}.png") for figure in figures]
    except OSError as error:
        raise WorkError(f"--out {folder}: cannot be written ({error.strerror})") from error


def _write(figure: Figure, path: Path) -> Path:
    canvas = Canvas(figsize=(10, max(figure.height, 300) / _PIXELS_PER_INCH), dpi=DPI, layout="constrained")
    axes = canvas.add_subplot()
    layout, data = plain_values(printable_value(figure.layout)), plain_values(printable_value(figure.drawn))
    _axes(axes, layout)
    stacks: dict[str, float] = {}
    for trace in _visible(data):
        _DRAW[trace["type"]](axes, trace, stacks)
    _named_rows(axes, layout.get("yaxis", {}), _visible(data))
    for shape in layout.get("shapes", ()):
        _shape(axes, shape)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        canvas.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    canvas.savefig(path, format="png")
    return path


def _visible(data: Sequence[_Trace]) -> list[_Trace]:
    return [trace for trace in data if trace.get("visible", True) is True]


def _axes(axes: Axes, layout: dict[str, Any]) -> None:
    x, y = layout.get("xaxis", {}), layout.get("yaxis", {})
    axes.set_xlabel(x.get("title", {}).get("text", ""))
    axes.set_ylabel(y.get("title", {}).get("text", ""))
    if x.get("type") == "log":
        axes.set_xscale("log")
    if y.get("type") == "log":
        axes.set_yscale("log")
    if "range" in x:
        axes.set_xlim(*x["range"])
    if y.get("autorange") == "reversed":
        axes.yaxis.set_inverted(True)
    dress(axes, grid="x" if y.get("type") == "category" else "y")


def dress(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """The look of all our plots; `grid`: the axis whose ticks have lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.grid(True, axis=grid, alpha=0.25)
    axes.set_axisbelow(True)


def _bar(axes: Axes, trace: _Trace, stacks: dict[str, float]) -> None:
    """Stacked bars; a bar with `base` (a Gantt's) starts there instead."""
    marker = trace.get("marker", {})
    across = trace.get("orientation") == "h"
    labels, lengths = (trace["y"], trace["x"]) if across else (trace["x"], trace["y"])
    starts = trace.get("base") or [stacks.get(str(label), 0.0) for label in labels]
    pattern = marker.get("pattern")
    style: dict[str, Any] = {"color": marker.get("color"), "label": trace.get("name")}
    if pattern:
        style |= {"hatch": "////", "edgecolor": pattern["fgcolor"], "linewidth": 0}
    if across:
        axes.barh([str(v) for v in labels], lengths, left=starts, **style)
    else:
        axes.bar([str(v) for v in labels], lengths, bottom=starts, **style)
        axes.tick_params(axis="x", rotation=45 if len(labels) > 8 else 0)
    for label, length, start in zip(labels, lengths, starts, strict=True):
        stacks[str(label)] = start + length
    for label, length, text in zip(labels, lengths, trace.get("text") or (), strict=False):
        axes.annotate(text, (length, str(label)), xytext=(4, 0), textcoords="offset points", va="center")


def _scatter(axes: Axes, trace: _Trace, _stacks: dict[str, float]) -> None:
    line, mode = trace.get("line", {}), trace.get("mode", "lines")
    axes.plot(
        trace["x"],
        trace["y"],
        label=trace.get("name"),
        color=line.get("color"),
        linestyle={"dash": "--", "dot": ":"}.get(line.get("dash"), "-") if "lines" in mode else "none",
        marker=("s" if trace["marker"].get("symbol") == "square" else "o") if "markers" in mode else None,
        markersize=trace.get("marker", {}).get("size", 5) * 0.7,
        linewidth=1.6,
    )


def _box(axes: Axes, trace: _Trace, stacks: dict[str, float]) -> None:
    position = len(stacks) + 1
    stacks[trace["name"]] = 0.0
    color = trace["marker"]["color"]
    axes.boxplot([trace["y"]], positions=[position], widths=0.5, medianprops={"color": color, "linewidth": 2})
    axes.set_xticks(range(1, position + 1), list(stacks))


def _histogram(axes: Axes, trace: _Trace, _stacks: dict[str, float]) -> None:
    axes.hist(trace["x"], bins=trace.get("nbinsx", 40), color=trace["marker"]["color"])


def _heatmap(axes: Axes, trace: _Trace, _stacks: dict[str, float]) -> None:
    z, x = np.asarray(trace["z"], np.float64), trace["x"]
    ends = trace["colorscale"].split(",")  # one colour, or those below and above zero
    scale = LinearSegmentedColormap.from_list("scale", [*ends[:-1], "#f4f6f8", ends[-1]])
    half = (x[1] - x[0]) / 2 if len(x) > 1 else 0.5
    extent = (x[0] - half, x[-1] + half, len(z) - 0.5, -0.5)
    image = axes.imshow(
        z, aspect="auto", extent=extent, cmap=scale, vmin=trace["zmin"], vmax=trace["zmax"], interpolation="nearest"
    )
    few = len(z) <= 40
    axes.set_yticks(range(len(z)), trace["y"]) if few else axes.set_ylabel("device")
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label(trace.get("colorbar", {}).get("title", {}).get("text", trace.get("name", "")))


def _named_rows(axes: Axes, y: dict[str, Any], data: Sequence[_Trace]) -> None:
    """The rows of a heatmap that its axis names, if it does not name all."""
    if "ticktext" not in y or not data or data[0]["type"] != "heatmap":
        return
    place = {name: i for i, name in enumerate(data[0]["y"])}
    axes.set_yticks([place[name] for name in y["tickvals"]], y["ticktext"])
    axes.set_ylabel("")


def _shape(axes: Axes, shape: dict[str, Any]) -> None:
    if shape["type"] == "rect":
        axes.axvspan(shape["x0"], shape["x1"], color=shape["fillcolor"], alpha=shape["opacity"], linewidth=0)
    elif shape.get("yref") == "y":
        axes.axhline(shape["y0"], color=shape["line"]["color"], linewidth=shape["line"]["width"])
    elif shape["type"] == "line":
        axes.axvline(shape["x0"], color=shape["line"]["color"], linestyle=":", linewidth=2)


_DRAW: dict[str, Callable[[Axes, _Trace, dict[str, float]], None]] = {
    "bar": _bar,
    "scatter": _scatter,
    "box": _box,
    "histogram": _histogram,
    "heatmap": _heatmap,
}
