"""Series of runs as people read them: tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.metrics import METRICS
from harness.analysis.summary.efficiency import POP_FACTORS, SERIES_FACTORS
from harness.common.display.format import amount, metric_text, percent
from harness.compare.points import EXPLAINING, PointValues, RepeatedMean, Size
from harness.report.compare.verdicts import verdict_words
from harness.report.elements import PageTable

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


def group_notes(points: Sequence[PointValues]) -> list[str]:
    """A sentence for each point whose runs fall into two groups, of the metric that is judged."""
    compared = [point.comparison for point in points if point.comparison is not None]
    arms = [(each.metric, each.a) for each in compared[:1]] + [(each.metric, each.b) for each in compared]
    return [arm.groups.text(arm.name, metric) for metric, arm in arms if arm.groups is not None]


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
