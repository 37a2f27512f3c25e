"""The step times of several runs, and each run's ratio to the base with its conclusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.compare import Comparison, Ratio
from harness.analysis.summary import Summary
from harness.format.format import duration
from harness.report.compare.tables import ONE_RUN_EACH, conclusion, doubts, letters
from harness.report.elements import Figure, Section, table
from harness.report.palette import of_series
from harness.report.plots import plotly_json

_FAR = 6.0  # interquartile ranges above the box: a step beyond would flatten the boxes of all runs


def steps_section(
    labels: Sequence[str], summaries: Sequence[Summary], pairs: Sequence[Comparison]
) -> Section:
    """Distributions beside ratios, and the ratios' numbers."""
    times = [(i, label, durations_ms(s)) for i, (label, s) in enumerate(zip(labels, summaries, strict=True))]
    known = [run for run in times if run[2]]
    if not known:
        return Section("steps", "Step time")
    ratios = [
        (i, other, pair, pair.step_time)
        for i, (other, pair) in enumerate(zip(letters(pairs)[1:], pairs, strict=True), 1)
        if pair.step_time is not None
    ]
    rows = [
        [other, pair.normalisation, duration(r.a_ns), duration(r.b_ns), f"{r.steps_a} and {r.steps_b}",
         f"{r.ratio:.3f}", f"{r.low:.3f} to {r.high:.3f}", conclusion(r, other, bool(pair.doubts))]
        for _, other, pair, r in ratios
    ]  # fmt: skip
    head = ("run", "", "median of a", "of this run", "steps", "ratio", "95 % interval", "")
    figures = [_boxes(known), *([_ratios([(i, labels[i], r) for i, _, _, r in ratios])] if ratios else [])]
    periods = any(pair.periods for pair in pairs)
    what = "period" if periods else "step time"
    tables = table(f"Median {what}, and the ratio with its bootstrap interval", head, rows, left=2)
    one_each = [] if periods else [ONE_RUN_EACH]
    lead = " ".join([*one_each, *(f"Doubtful: {doubt}." for doubt in doubts(pairs))]) if ratios else ""
    return Section("steps", "Periods of a kernel" if periods else "Step time", lead, figures, tables)


def durations_ms(s: Summary) -> list[float]:
    """Every profiled step of every rank, else the steps of the training's own clock."""
    traced = [ns for rank in s.steps.per_rank for ns in rank.durations_ns]
    return [ns / 1e6 for ns in traced or [ns for t in s.training for ns in t.step_durations_ns]]


def _boxes(known: Sequence[tuple[int, str, list[float]]]) -> Figure:
    data = plotly_json.boxes((label, times, of_series(i)) for i, label, times in known)
    limit = max(map(_whisker, (times for *_, times in known)))
    everything = [t for *_, times in known for t in times]
    beyond = [t for t in everything if t > limit]
    low = min(everything)
    room = 0.05 * (limit - low) or 0.05 * limit
    y = plotly_json.axis("step time (ms)", **({"range": [low - room, limit + room]} if beyond else {}))
    words = "Step times of all ranks of each run. The box is the middle half of the steps; its line is the median."
    if beyond:
        words += f" {len(beyond)} far longer steps are not shown, up to {duration(max(beyond) * 1e6)}."
    return Figure("steps", words, data, plotly_json.layout("", y, showlegend=False), 320)


def _whisker(times: Sequence[float]) -> float:
    """The longest step that is not far from the others."""
    first, third = np.percentile(times, (25, 75))
    return max(t for t in times if t <= third + _FAR * (third - first))


def _ratios(ratios: Sequence[tuple[int, str, Ratio]]) -> Figure:
    """The ratios with their intervals beside the line at 1."""
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label,
            "x": [r.ratio],
            "y": [label],
            "marker": {"color": of_series(i), "size": 11},
            "error_x": {
                "type": "data", "symmetric": False, "array": [r.high - r.ratio],
                "arrayminus": [r.ratio - r.low], "thickness": 2, "width": 8, "color": of_series(i),
            },
            "hovertemplate": f"%{{y}}: %{{x:.3f}}, {r.low:.3f} to {r.high:.3f}<extra></extra>",
        }
        for i, label, r in ratios
    ]  # fmt: skip
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    low, high = min(1.0, *(r.low for *_, r in ratios)), max(1.0, *(r.high for *_, r in ratios))
    room = 0.08 * (high - low)
    x = plotly_json.axis("median step / median step of a (ratio)", range=[low - room, high + room])
    shapes = [one | {"line": {"color": "#888888", "width": 1.5, "dash": "dash"}}]
    words = "Ratio of the median step time to a's, with its 95 % interval: " + "; ".join(
        f"{label} {r.ratio:.3f} ({r.low:.3f} to {r.high:.3f}), {r.verdict}" for _, label, r in ratios
    )
    axes = plotly_json.layout(x, plotly_json.NAMES, showlegend=False, shapes=shapes)
    return Figure("step-ratios", words + ".", data, axes, max(200, 130 + 46 * len(ratios)))
