"""Plots of a series as PNG: a measured value against an option, with intervals. Knows no run."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.analysis.repeats import PointValues, Repeated
from harness.common.errors import WorkError
from harness.report.palette import of_series
from harness.report.plots.plain import plain
from harness.report.sweeps.values import Scale, label_of, scale_of

_INK = "#1b2129"
_MARKERS = "osD^vP*X"
_WIDE = 8  # times the smallest value: from there on an axis is logarithmic


def number(text: str) -> float | None:
    """The option's value as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def plot_series(title: str, points: Sequence[PointValues], metric: str, against: str, path: Path) -> None:
    """Write the plot: `metric` against the option `against`, one line for each setting of the other options.

    Raises:
        WorkError: the file cannot be written.
    """
    known = [point for point in points if metric in point.values]
    ends = [value for point in known for value in _ends(point.values[metric])]
    scale = scale_of(metric, max(map(abs, ends), default=0.0))
    canvas = canvas_of(8, 5)
    axes = canvas.add_subplot()
    _lines(axes, known, metric, against, scale)
    axes.set_xlabel(plain(against.replace("_", " ")))
    axes.set_ylabel(scale.label)
    axes.set_ylim(bottom=min(0.0, *(scale.factor * end for end in ends)) if ends else 0.0)
    dress(axes)
    canvas.suptitle(plain(f"{title}: {label_of(metric)}"), fontsize=11, color=_INK)
    axes.set_title(_words_of_intervals(known, metric), fontsize=8.5, color=_INK)
    save(canvas, path)


def _words_of_intervals(points: Sequence[PointValues], metric: str) -> str:
    counts = sorted({point.values[metric].n for point in points})
    if counts[-1:] == [1] or not counts:
        return "one run per point, so there are no intervals"
    runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"means of {runs} runs per point; bars: 95 % intervals (Student's t)"


def _lines(axes: Axes, points: Sequence[PointValues], metric: str, against: str, scale: Scale) -> None:
    values = list(dict.fromkeys(point.settings[against] for point in points))
    places, numeric = _places(values)
    groups: dict[str, list[PointValues]] = {}
    for point in points:
        others = ", ".join(
            f"{name.replace('_', ' ')} {v}" for name, v in point.settings.items() if name != against
        )
        groups.setdefault(others, []).append(point)
    for index, (others, group) in enumerate(groups.items()):
        ordered = sorted(group, key=lambda point: places[point.settings[against]])
        x = [places[point.settings[against]] for point in ordered]
        with_bars(axes, x, [point.values[metric] for point in ordered], scale.factor, Look(index, others))
    ticks = list(places.values())
    if numeric and min(ticks, default=0) > 0 and max(ticks) >= _WIDE * min(ticks):
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, list(map(plain, places)))
    axes.minorticks_off()
    if len(groups) > 1:
        axes.legend(frameon=False, fontsize=9)


def _places(values: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Where each value stands on the axis: as a number, else in the file's order; and whether all are numbers."""
    numbers = [number(value) for value in values]
    known = [each for each in numbers if each is not None]
    numeric = len(known) == len(values)
    return dict(zip(values, known if numeric else map(float, range(len(values))), strict=True)), numeric


class Look(NamedTuple):
    """A line of a plot: its number among the lines, which gives colour and mark, and its name in the legend."""

    number: int
    name: str = ""


def with_bars(axes: Axes, x: Sequence[float], values: Sequence[Repeated], factor: float, look: Look) -> None:
    """A line through the means, with the intervals as bars if there are some."""
    marker = _MARKERS[look.number % len(_MARKERS)]
    style: dict[str, Any] = {"color": of_series(look.number), "linewidth": 1.6}
    y = [factor * value.mean for value in values]
    axes.plot(x, y, marker=marker, markersize=5, label=plain(look.name) or None, **style)
    for place, value in zip(x, values, strict=True):
        if value.low is not None and value.high is not None:
            below, above = factor * (value.mean - value.low), factor * (value.high - value.mean)
            axes.errorbar([place], [factor * value.mean], yerr=[[below], [above]], capsize=3, **style)


def canvas_of(width: float, height: float) -> Figure:
    """An empty picture, in inches."""
    canvas = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def dress(axes: Axes) -> None:
    """The look of all our plots."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
    axes.grid(True, axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def save(canvas: Figure, path: Path) -> None:
    """Write the picture whole or not at all. Raises WorkError: the file cannot be written."""
    drawn = BytesIO()
    canvas.savefig(drawn, format="png")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(drawn.getvalue())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WorkError(f"--png {path}: cannot be written ({error.strerror})") from None


def _ends(value: Repeated) -> tuple[float, ...]:
    return tuple(each for each in (value.low, value.mean, value.high) if each is not None)
