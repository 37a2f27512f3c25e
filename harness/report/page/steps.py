"""The page's section about steps: one after another, their distribution, speed and efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import PaceChange, Summary
from harness.format.format import duration
from harness.format.labels import step_parts
from harness.report.elements import Figure, Section, Table
from harness.report.page.inputs import Inputs, StepRecord
from harness.report.palette import CAUSES, COMPUTE, SERIES, of_series
from harness.report.plots import plotly_json
from harness.report.plots.pacing import pace_figure
from harness.report.tables.catalogue import page_tables
from harness.report.tables.pace_changes import pace_change_sentences
from harness.report.tables.pacing import pace_sentences

_MANY_RANKS = len(SERIES)
_FEW = 12  # steps, each with its own mark on the axis
_PHASES = {"skip": "skipped", "wait": "profiler waits", "warmup": "profiler warms up", "active": "profiled"}
_SHADES = {"warmup": CAUSES["synchronisation"], "active": COMPUTE}


def steps_section(s: Summary, inputs: Inputs) -> Section:
    """Step time over steps and its distribution, per rank; empty without a step."""
    recorded = {_who(rank, rank): list(steps) for rank, steps in sorted(inputs.steps.items())}
    if recorded:
        figures = [
            _over_steps(recorded, s.pace_changes),
            _distribution({r: _counted(x) for r, x in recorded.items()}),
        ]
        lead = "Measured by the training's own clock."
        if any(x.phase == "active" for steps in inputs.steps.values() for x in steps):
            lead += " Blue: the profiled steps. All numbers from the traces are of these steps."
    else:
        by_rank = {
            _who(r.rank, number): [ns / 1e6 for ns in r.durations_ns]
            for number, r in enumerate(s.steps.per_rank)
            if r.durations_ns
        }
        figures = _from_trace(by_rank) if by_rank else []
        what = "periods" if by_periodicity(s.steps.source) else "steps"
        lead = f"From the trace: {s.steps.source}, {s.steps.counted} {what} counted of {s.steps.found}."
        lead += " Nothing marks the steps; a period may be a layer." if what == "periods" else ""
        lead += " They are those of the device, since the host is ahead of it." if s.steps.on_device else ""
        if parts := step_parts(s.steps):
            lead += f" The mean step has {parts}."
    pace = pace_figure(s.pacing) if s.pacing else None
    figures += [pace] if pace else []
    lead = " ".join([lead, *pace_change_sentences(s), *pace_sentences(s)])
    return Section("steps", "Step time", lead if figures else "", figures, page_tables(s, "steps"))


def _from_trace(by_rank: dict[str, list[float]]) -> list[Figure]:
    """Lines and boxes, or one bar per rank if no rank has enough steps for them."""
    if max(map(len, by_rank.values())) > 2:
        return [_traced(by_rank), _distribution(by_rank)]
    ranks = list(by_rank)
    data = [plotly_json.bars("step time", [median(by_rank[r]) for r in ranks], ranks, SERIES[0])]
    words = "Median duration of the counted steps of each rank, milliseconds. "
    words += _range_in_words({r: ([0], v) for r, v in by_rank.items()})
    axes = plotly_json.layout("step time (ms)", plotly_json.NAMES, showlegend=False)
    return [Figure("step-time", words, data, axes, plotly_json.bars_height(len(ranks)))]


def _who(rank: int | None, number: int) -> str:
    return f"process {number}" if rank is None else f"rank {rank}"


def _counted(steps: Sequence[StepRecord]) -> list[float]:
    """Milliseconds of the profiled steps, or of all when none was."""
    chosen = [x for x in steps if x.phase == "active"] or list(steps)
    return [x.step_ns / 1e6 for x in chosen]


def _over_steps(recorded: dict[str, list[StepRecord]], changes: Sequence[PaceChange]) -> Figure:
    series = {r: ([x.step for x in steps], [x.step_ns / 1e6 for x in steps]) for r, steps in recorded.items()}
    first = next(iter(recorded.values()))
    shapes, bands = _phase_bands(first)
    onsets, marks = _onsets(changes)
    return Figure(
        "step-time",
        "Step time of each rank over the steps of the training, milliseconds. " + _range_in_words(series),
        [*_lines(series), *bands, *marks],
        plotly_json.layout(
            _step_axis("step", series), "step time (ms)", shapes=[*shapes, *onsets], showlegend=True
        ),
        table=_phase_table(recorded),
    )


def _traced(by_rank: dict[str, list[float]]) -> Figure:
    series = {r: (list(range(len(v))), v) for r, v in by_rank.items()}
    words = "Duration of the counted steps of each rank, milliseconds. " + _range_in_words(series)
    axes = plotly_json.layout(_step_axis("counted step", series), "step time (ms)")
    return Figure("step-time", words, _lines(series), axes)


def _step_axis(title: str, series: dict[str, tuple[list[int], list[float]]]) -> dict[str, Any]:
    """An axis of steps; few steps get a mark each, since half a step does not exist."""
    few = max(len(x) for x, _ in series.values()) <= _FEW
    return plotly_json.axis(title, **({"dtick": 1} if few else {}))


def _range_in_words(series: dict[str, tuple[list[int], list[float]]]) -> str:
    values = [v for _, y in series.values() for v in y]
    if not values:
        return ""
    return f"From {min(values):.4g} to {max(values):.4g} ms, median {median(values):.4g} ms."


def _lines(series: dict[str, tuple[list[int], list[float]]]) -> list[dict[str, Any]]:
    """A line per rank; for many ranks the median, the extremes, and the slowest rank."""
    if len(series) <= _MANY_RANKS:
        return [plotly_json.line(r, x, y, of_series(i)) for i, (r, (x, y)) in enumerate(series.items())]
    length = min(len(y) for _, y in series.values())
    columns = [[y[i] for _, y in series.values()] for i in range(length)]
    x = next(iter(series.values()))[0][:length]
    slowest = max(series, key=lambda r: median(series[r][1]))
    return [
        plotly_json.line("fastest rank of the step", x, [min(c) for c in columns], SERIES[2]),
        plotly_json.line(f"median of {len(series)} ranks", x, [median(c) for c in columns], SERIES[0]),
        plotly_json.line("slowest rank of the step", x, [max(c) for c in columns], SERIES[3]),
        plotly_json.line(f"{slowest}, the slowest", *series[slowest], SERIES[1]),
    ]


def _phase_bands(steps: Sequence[StepRecord]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Shades behind the phases in which the profiler works, and their entries in the legend. Words above the bands
    would overlap if a phase has one or two steps."""
    shapes, named = [], []
    for phase, color in _SHADES.items():
        inside = [x.step for x in steps if x.phase == phase]
        if not inside:
            continue
        shapes.append(plotly_json.band(min(inside) - 0.5, max(inside) + 0.5, color))
        patch = plotly_json.line(_PHASES[phase], [None], [None], color, mode="markers", hoverinfo="skip")
        named.append(patch | {"marker": {"color": color, "symbol": "square", "size": 12, "opacity": 0.4}})
    return shapes, named


def _onsets(changes: Sequence[PaceChange]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line where each new pace begins, between two steps, and their entry in the legend."""
    color = CAUSES["host work"]
    ends = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    line = {"color": color, "width": 1.5, "dash": "dash"}
    shapes = [{"type": "line", **ends, "x0": x.step - 0.5, "x1": x.step - 0.5, "line": line} for x in changes]
    entry = plotly_json.line("a new pace begins", [None], [None], color, mode="lines", hoverinfo="skip")
    return shapes, [entry | {"line": line}] if changes else []


def _phase_table(recorded: dict[str, list[StepRecord]]) -> Table:
    rows = []
    for rank, steps in recorded.items():
        for phase in dict.fromkeys(x.phase for x in steps):
            ns = [x.step_ns for x in steps if x.phase == phase]
            median_ns, low, high = duration(median(ns)), duration(min(ns)), duration(max(ns))
            rows.append([rank, _PHASES.get(phase, phase), str(len(ns)), median_ns, low, high])
    return Table("Step time by phase", ("rank", "phase", "steps", "median", "fastest", "slowest"), rows, 2)


def _distribution(by_rank: dict[str, list[float]]) -> Figure:
    if len(by_rank) <= 4 * _MANY_RANKS:
        data = plotly_json.boxes((r, values, of_series(i)) for i, (r, values) in enumerate(by_rank.items()))
        axes = plotly_json.layout("", "step time (ms)", showlegend=False)
        how = "the box is the middle half, its line is the median"
    else:
        values = [v for steps in by_rank.values() for v in steps]
        data = [{"type": "histogram", "x": values, "nbinsx": 60, "marker": {"color": SERIES[0]}}]
        axes = plotly_json.layout("step time (ms)", "steps", showlegend=False)
        how = f"the number of steps of all {len(by_rank)} ranks that took this time"
    words = f"Distribution of the times of the counted steps: {how}."
    return Figure("step-distribution", words, data, axes, height=300)
