"""The page's section about a pipeline: its bubble, measured and theoretical, and a Gantt chart of one step."""

from __future__ import annotations

from collections.abc import Iterable

from harness.analysis.summary import Summary
from harness.report.elements import Figure, Section
from harness.report.page.inputs import Inputs
from harness.report.palette import COMMUNICATION, COMPUTE, IDLE
from harness.report.plots import plotly_json
from harness.report.tables.pipeline import pipeline_words, stage_label


def pipeline_section(s: Summary, inputs: Inputs) -> Section:
    """Stages as bars of busy, waiting and bubble; empty for a job without a pipeline."""
    if s.pipeline is None:
        return Section("pipeline", "Pipeline")
    figures = [*([inputs.gantt] if inputs.gantt else []), _stages(s)]
    return Section("pipeline", "Pipeline", pipeline_words(s), figures)


def _stages(s: Summary) -> Figure:
    stages = s.pipeline.per_stage if s.pipeline else []
    labels = list(map(stage_label, stages))

    def share(values: Iterable[int]) -> list[float]:
        return [round(100 * v / max(x.schedule_ns, 1), 2) for v, x in zip(values, stages, strict=True)]

    busy, bubble = (x.schedule_busy_ns for x in stages), (x.schedule_ns - x.schedule_busy_ns for x in stages)
    data = [
        plotly_json.percent_bars("busy", share(busy), labels, COMPUTE),
        plotly_json.percent_bars("bubble", share(bubble), labels, IDLE),
    ]
    lines = _theory(s.pipeline.expected_bubble_fraction if s.pipeline else None)
    x_axis = plotly_json.axis("share of the schedule (%)", range=[0, 100])
    axes = plotly_json.layout(x_axis, plotly_json.NAMES, barmode="stack", shapes=lines)
    dotted = " Dotted: the busy share that the schedule alone predicts." if lines else ""
    words = f"Busy time and bubble of each stage.{dotted}"
    return Figure("pipeline-stages", words, data, axes, plotly_json.bars_height(len(stages)), wide=True)


def _theory(expected: float | None) -> list[dict[str, object]]:
    """A dotted line at the busy share that the schedule alone predicts; no line if it is not known."""
    if expected is None:
        return []
    at = 100 * (1 - expected)
    return [{"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
             "line": {"color": COMMUNICATION, "dash": "dot", "width": 2}}]  # fmt: skip
