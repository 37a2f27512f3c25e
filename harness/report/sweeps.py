"""Series of runs as people read them: tables and a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.analysis.metrics import METRICS
from harness.analysis.summary.efficiency import POP_FACTORS, SERIES_FACTORS
from harness.common.format import amount, cells, metric_text, percent
from harness.compare.points import EXPLAINING, Optimum, PointValues, RepeatedMean, Size
from harness.report.compare.verdicts import verdict_words
from harness.report.elements import PageTable
from harness.run import naming_flag, write_atomically

_NAMED = 3  # settings that a sentence names
INTERVALS = "mean of the runs ± half of its 95 % interval (Student's t); one run has no interval"


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


def _places(values: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Where each value stands among the others: as a number, else in the file's order; and whether all are numbers."""
    try:
        return {value: float(value) for value in values}, True
    except ValueError:
        return {value: float(place) for place, value in enumerate(values)}, False


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
