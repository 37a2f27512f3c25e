"""Series of runs as people read them: a table, a CSV file, plots with intervals."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.metrics import METRICS
from harness.analysis.summary.efficiency import POP_FACTORS, SERIES_FACTORS
from harness.common.errors import WorkError
from harness.common.format import amount, cells, metric_axis, metric_text, percent, rate
from harness.common.palette import of_series
from harness.compare.points import EXPLAINING, Optimum, PointValues, RepeatedMean, Size
from harness.report.compare.verdicts import verdict_words
from harness.report.elements import PageTable
from harness.report.plots.png import DPI, INK, dress, plain
from harness.run import naming_flag, write_atomically

_NAMED = 3  # settings that a sentence names
INTERVALS = "mean of the runs ± half of its 95 % interval (Student's t); one run has no interval"
_MARKERS = "osD^vP*X"
_WIDE = 8  # times the smallest value: from there on an axis is logarithmic


def label_of(metric: str) -> str:
    """The metric's words: its title, else those of a comparison, else its name without underscores."""
    declared = next((each for each in METRICS if each.name == metric), None)
    return (declared and (declared.title or declared.label.strip())) or metric.replace("_", " ")


def text_of(metric: str, value: RepeatedMean | None) -> str:
    """`412 ms`, with repeats `412 ms ± 14.0 ms`; a dash if it was not measured."""
    if value is None:
        return "–"
    middle = metric_text(metric, value.mean)
    if value.high is None:
        return middle
    return f"{middle} ± {metric_text(metric, value.high - value.mean)}"


def runs_text(point: PointValues, metrics: Sequence[str]) -> str:
    """How many runs the means are of; a value that fewer have says so by a range."""
    counts = sorted({point.values[name].n for name in metrics if name in point.values}) or [len(point.runs)]
    many = str(counts[-1]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{many} (doubtful: {len(point.doubtful)})" if point.doubtful else many


def scale_of(metric: str, largest: float) -> tuple[str, float]:
    """The label of the axis of a metric whose largest value is `largest`, and the factor for each value."""
    unit, factor = metric_axis(metric, largest)
    return f"{label_of(metric)} ({unit})" if unit else label_of(metric), factor


def shown_table(title: str, points: Sequence[PointValues], metrics: Sequence[str]) -> PageTable:
    axes = list(points[0].settings) if points else []
    head = [*axes, "runs", *map(label_of, metrics)]
    rows = []
    for point in points:
        values = [text_of(name, point.values.get(name)) for name in metrics]
        verdict = [["", ""] if point.comparison is None else [point.comparison.change, verdict_words(point.comparison)]]
        rows.append([*(point.settings[name] for name in axes), runs_text(point, metrics), *values, *verdict[0]])
    repeats = any(len(point.runs) > 1 for point in points)
    caption = f"{title}: {INTERVALS}" if repeats else title
    judged = next((point.comparison.metric for point in points if point.comparison is not None), None)
    if judged is None:
        return PageTable(caption, head, [row[:-2] for row in rows], left=len(axes))
    caption += f"; difference: {label_of(judged)} against the first row"
    return PageTable(caption, [*head, "difference", "verdict"], rows, left=len(axes))


def optimum_text(optimum: Optimum, points: Sequence[PointValues]) -> str:
    """Where the metric is best, and from where to where the runs do not tell a difference."""
    known = {point.point: point for point in points if optimum.metric in point.values}
    best, metric = known[optimum.best], label_of(optimum.metric)
    where = f"{_words(best)} ({text_of(optimum.metric, best.values[optimum.metric])})"
    line = _along_one_axis(list(known.values()))
    if optimum.alike is None:
        return (
            f"Cannot tell which setting is best for {metric}: one run per point does not show how much runs differ "
            f"(add --repeats 3). The best value is at {where}."
        )
    told = _no_difference([point for name, point in known.items() if name in optimum.alike], best, line)
    if len(optimum.alike) == len(known):
        return f"Cannot tell which setting is best for {metric}: {told} (95 %). The best mean is at {where}."
    beyond = " Larger values were not tried." if line[-1:] == [best] else ""
    beside = f"{told} (95 %), and " if told else ""
    return f"The best {metric}: {where}; {beside}all others are worse.{beyond}"


def _words(point: PointValues) -> str:
    return " ".join(f"{name} {value}" for name, value in point.settings.items())


def _along_one_axis(points: Sequence[PointValues]) -> list[PointValues]:
    """The points in the order of the one number that varies; empty if it is no number, or several options vary."""
    if any(len(point.settings) != 1 for point in points):
        return []
    places, numeric = _places([value for point in points for value in point.settings.values()])
    return sorted(points, key=lambda point: places[next(iter(point.settings.values()))]) if numeric else []


def _no_difference(alike: Sequence[PointValues], best: PointValues, point_values: list[PointValues]) -> str:
    """`from A to B no difference can be told`, or a list if they do not follow each other; empty without others."""
    others = [_words(point) for point in alike if point is not best]
    places = sorted(point_values.index(point) for point in alike) if point_values else []
    if len(others) > 1 and places and places[-1] - places[0] == len(others):
        name, first = next(iter(point_values[places[0]].settings.items()))
        return f"from {name} {first} to {point_values[places[-1]].settings[name]} no difference can be told"
    if len(others) > _NAMED:
        others[_NAMED:] = [f"{len(others) - _NAMED} more"]
    named = " and ".join(filter(None, (", ".join(others[:-1]), *others[-1:])))
    return f"no difference to {named} can be told" if others else ""


def write_csv(points: Sequence[PointValues], path: Path) -> None:
    """Each value of each point: mean, ends of the interval, count. Raises WorkError: it cannot be written."""
    axes = list(points[0].settings) if points else []
    metrics = list(dict.fromkeys(name for point in points for name in point.values))
    ends = ("", "_low", "_high", "_n")
    rows: list[list[Any]] = [[*axes, "runs", *(f"{name}{end}" for name in metrics for end in ends)]]
    for point in points:
        values = [point.values.get(name) for name in metrics]
        numbers = [part for v in values for part in ((v.mean, v.low, v.high, v.n) if v else (None, None, None, 0))]
        rows.append([*(point.settings[name] for name in axes), " ".join(point.runs), *numbers])
    _write_rows(rows, path)


def _write_rows(rows: Sequence[Sequence[Any]], path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cells, rows))
    with naming_flag("--csv"):
        write_atomically(path, text.getvalue())


def plot_series(title: str, points: Sequence[PointValues], metric: str, against: str, path: Path) -> None:
    """Plot a metric against an option, a line for each setting of the others. Raises WorkError: not written."""
    known = [point for point in points if metric in point.values]
    intervals = [point.values[metric] for point in known]
    ends = [end for value in intervals for end in (value.low, value.mean, value.high) if end is not None]
    label, factor = scale_of(metric, max(map(abs, ends), default=0.0))
    canvas = Figure(figsize=(8, 5), dpi=DPI, layout="constrained")
    axes = canvas.add_subplot()
    _lines(axes, known, metric, against, factor)
    axes.set_xlabel(plain(against.replace("_", " ")))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=min(0.0, *(factor * end for end in ends)) if ends else 0.0)
    dress(axes)
    canvas.suptitle(plain(f"{title}: {label_of(metric)}"), fontsize=11, color=INK)
    axes.set_title(_words_of_intervals(known, metric), fontsize=8.5, color=INK)
    save(canvas, path)


def _words_of_intervals(points: Sequence[PointValues], metric: str) -> str:
    counts = sorted({point.values[metric].n for point in points})
    if counts[-1:] == [1] or not counts:
        return "one run per point, so there are no intervals"
    runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"means of {runs} runs per point; bars: 95 % intervals (Student's t)"


def _lines(axes: Axes, points: Sequence[PointValues], metric: str, against: str, factor: float) -> None:
    values = list(dict.fromkeys(point.settings[against] for point in points))
    places, numeric = _places(values)
    groups: dict[str, list[PointValues]] = {}
    for point in points:
        others = ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in point.settings.items() if name != against)
        groups.setdefault(others, []).append(point)
    for index, (others, group) in enumerate(groups.items()):
        ordered = sorted(group, key=lambda point: places[point.settings[against]])
        x = [places[point.settings[against]] for point in ordered]
        _with_bars(axes, x, [point.values[metric] for point in ordered], factor, number=index, name=others)
    ticks = list(places.values())
    if numeric and min(ticks, default=0) > 0 and max(ticks) >= _WIDE * min(ticks):
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, list(map(plain, places)))
    axes.minorticks_off()
    if len(groups) > 1:
        axes.legend(frameon=False, fontsize=9)


def _places(values: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Where each value stands on the axis: as a number, else in the file's order; and whether all are numbers."""
    try:
        return {value: float(value) for value in values}, True
    except ValueError:
        return {value: float(place) for place, value in enumerate(values)}, False


def _with_bars(
    axes: Axes, x: Sequence[float], means: Sequence[RepeatedMean], factor: float, *, number: int = 0, name: str = ""
) -> None:
    """A line through the means, with the intervals as bars if there are some. number: of the plot's lines."""
    marker = _MARKERS[number % len(_MARKERS)]
    style: dict[str, Any] = {"color": of_series(number), "linewidth": 1.6}
    y = [factor * value.mean for value in means]
    axes.plot(x, y, marker=marker, markersize=5, label=plain(name) or None, **style)
    for place, value in zip(x, means, strict=True):
        if value.low is not None and value.high is not None:
            below, above = factor * (value.mean - value.low), factor * (value.high - value.mean)
            axes.errorbar([place], [factor * value.mean], yerr=[[below], [above]], capsize=3, **style)


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


def scaling_table(title: str, sizes: Sequence[Size]) -> PageTable:
    rows = []
    for size in sizes:
        speed, up, share = size.throughput, size.speed_up, size.efficiency
        ideal = size.devices / sizes[0].devices
        rows.append(
            [
                str(size.devices),
                f"{amount(speed.mean, size.unit)}{_spread(speed)}" if speed else "–",
                f"{up.mean:.2f}{_between(up, 1, 2)}" if up else "–",
                f"{percent(share.mean)}{_between(share, 100, 0)}" if share else "–",
                verdict_words(size.comparison) if size.comparison else "",
                f"{ideal:g}",
                str(len(size.runs)),
                ", ".join(f"{name} {value}" for name, value in list(size.settings.items())[1:]),
            ]
        )
    # A narrow terminal shows the first ones.
    head = ("devices", "throughput", "speed-up", "efficiency", "verdict", "ideal", "runs", "with")
    repeats = any(len(size.runs) > 1 for size in sizes)
    return PageTable(f"{title}: {INTERVALS}" if repeats else title, head, rows)


def _explaining(sizes: Sequence[Size]) -> dict[str, str]:
    """The shares and efficiencies that explain at least one size, with their labels."""
    labels = {name: label_of(name) for name in EXPLAINING}
    labels |= {factor.field: factor.in_series for factor in (*POP_FACTORS, *SERIES_FACTORS)}
    return {name: label for name, label in labels.items() if any(name in size.values for size in sizes)}


def why_table(sizes: Sequence[Size]) -> PageTable:
    """What explains it: a column per size."""
    labels = _explaining(sizes)
    rows = [
        [label, *(percent(size.values[name].mean) if name in size.values else "–" for size in sizes)]
        for name, label in labels.items()
    ]
    return PageTable("What explains it, means of the runs", ("devices", *(str(size.devices) for size in sizes)), rows)


def _spread(value: RepeatedMean) -> str:
    """Half of the interval, relative to the mean; empty if one run has none."""
    return "" if value.high is None else f" ± {percent(value.high / value.mean - 1)}"


def _between(value: RepeatedMean, factor: float, digits: int) -> str:
    if value.low is None or value.high is None:
        return ""
    return f" ({factor * value.low:.{digits}f} to {factor * value.high:.{digits}f})"


def write_scaling_csv(sizes: Sequence[Size], path: Path) -> None:
    """Every number of every size, with the ends of its interval. Raises WorkError: it cannot be written."""
    names = list(_explaining(sizes))
    columns = ["throughput", "speed_up", "efficiency", *names]
    axes = list(sizes[0].settings) if sizes else []
    ends = ("", "_low", "_high")
    rows: list[list[Any]] = [["devices", *axes, "runs", "unit", *(f"{c}{end}" for c in columns for end in ends)]]
    for size in sizes:
        values = [size.throughput, size.speed_up, size.efficiency, *(size.values.get(name) for name in names)]
        numbers = [part for v in values for part in ((v.mean, v.low, v.high) if v else (None, None, None))]
        settings = [size.settings[name] for name in axes]
        rows.append([size.devices, *settings, " ".join(size.runs), size.unit, *numbers])
    _write_rows(rows, path)


def plot_scaling(title: str, sizes: Sequence[Size], path: Path) -> None:
    """Speed-up beside its ideal line, and the efficiency, with intervals. Raises WorkError: it cannot be written."""
    known = [size for size in sizes if size.speed_up is not None and size.efficiency is not None]
    x = [float(size.devices) for size in known]
    canvas = Figure(figsize=(10, 4.6), dpi=DPI, layout="constrained")
    left, right = canvas.subplots(1, 2)
    left.plot(x, [each / x[0] for each in x], linestyle="--", color="#9aa0a6", label="ideal")
    _with_bars(left, x, [size.speed_up for size in known if size.speed_up], 1.0, name="measured")
    left.set_ylabel(f"speed-up over {x[0]:g} device{'s' * (x[0] > 1)}")
    left.legend(frameon=False, fontsize=9)
    right.axhline(100, linestyle="--", color="#9aa0a6")
    _with_bars(right, x, [size.efficiency for size in known if size.efficiency], 100.0)
    right.set_ylabel("parallel efficiency (%)")
    for axes, top, factor, values in (  # the top is that of the ideal: a wide interval must not flatten the rest
        (left, x[-1] / x[0], 1.0, [size.speed_up for size in known]),
        (right, 100.0, 100.0, [size.efficiency for size in known]),
    ):
        axes.set_ylim(0, 1.25 * max(top, *(factor * value.mean for value in values if value)))
        axes.set_xlabel("devices")
        if len(x) > 1 and x[-1] >= 8 * x[0]:
            axes.set_xscale("log", base=2)
        axes.set_xticks(x, [rate(each) for each in x])
        axes.minorticks_off()
        dress(axes)
    single = {len(size.runs) for size in known} == {1}
    told = "one run per size, so there are no intervals" if single else "bars: 95 % intervals, cut at the plot's edge"
    canvas.suptitle(plain(f"{title} ({told})"), fontsize=11)
    save(canvas, path)
