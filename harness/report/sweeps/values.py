"""A measured value with its interval, as text and on an axis: the unit follows from the metric's name. Knows no run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.repeats import PointValues, Repeated
from harness.format.format import metric_text
from harness.report.tables.catalogue import labels

_WORDS = {
    "step_ns": "step time",
    "peak_memory_bytes": "peak memory",
    "mfu": "MFU",
    "tokens_per_s": "tokens/s",
}


def label_of(metric: str) -> str:
    """The metric's words: those of a comparison, else its name without underscores."""
    found = _WORDS.get(metric) or labels().get(metric, "").strip()
    return found or metric.replace("_", " ")


def text_of(metric: str, value: Repeated | None) -> str:
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


class Scale(NamedTuple):
    """How a metric stands on an axis: values are multiplied by `factor`."""

    label: str
    factor: float


_SCALES: tuple[tuple[str, str, float], ...] = (
    (r"_ns_per_token$", "µs a token", 1e-3),
    (r"_ns$", "ms", 1e-6),
    (r"_bytes$|^bytes_", "GB", 1e-9),
    (r"_share(_|$)|_fraction$|bubble$|^mfu$|_efficiency$|^load_balance$", "%", 100.0),
    (r"_joules$", "J", 1.0),
)


def scale_of(metric: str, largest: float) -> Scale:
    """The axis of a metric whose largest value is `largest`, in the metric's own unit."""
    for pattern, unit, factor in _SCALES:
        if re.search(pattern, metric):
            small = unit == "GB" and largest < 1e9
            return Scale(f"{label_of(metric)} ({'MB' if small else unit})", 1e-6 if small else factor)
    return Scale(label_of(metric), 1.0)
