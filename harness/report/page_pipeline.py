"""The page's section about a pipeline: its bubble, measured and theoretical, and a Gantt chart of one step."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.report import plots
from harness.report.numbers import duration, percent
from harness.report.page_inputs import Inputs
from harness.report.page_parts import Figure, Section, Table
from harness.report.plots_palette import COMMUNICATION, COMPUTE, IDLE


def pipeline_section(s: Summary, inputs: Inputs) -> Section:
    """Stages as bars of busy, waiting and bubble; empty for a job without a pipeline."""
    p = s.pipeline
    if p is None:
        return Section("pipeline", "Pipeline")
    lead = (
        f"{p.stages} stages, {p.microbatches} micro-batches"
        + (f", {p.virtual_stages} virtual stages" if p.virtual_stages > 1 else "")
        + f". Bubble: {percent(p.mean_bubble_fraction)} measured; the schedule alone predicts "
        f"(p − 1) / (m·v + p − 1) = {percent(p.expected_bubble_fraction)}."
    )
    figures = [*([inputs.gantt] if inputs.gantt else []), _stages(s)]
    return Section("pipeline", "Pipeline", lead, figures)


def _stages(s: Summary) -> Figure:
    stages = s.pipeline.per_stage if s.pipeline else []
    labels = [f"stage {x.stage}" + (f", rank {x.rank}" if x.rank is not None else "") for x in stages]

    def share(values: list[int]) -> list[float]:
        return [round(100 * v / max(x.schedule_ns, 1), 2) for v, x in zip(values, stages, strict=True)]

    data = [
        plots.share("busy", share([x.schedule_busy_ns for x in stages]), labels, COMPUTE),
        plots.share("bubble", share([x.schedule_ns - x.schedule_busy_ns for x in stages]), labels, IDLE),
    ]
    rows = [
        [
            label,
            percent(x.schedule_bubble_fraction),
            percent(x.bubble_fraction),
            duration(x.warmup_ns),
            duration(x.steady_ns),
            duration(x.cooldown_ns),
            duration(x.send_recv_ns),
        ]
        for label, x in zip(labels, stages, strict=True)
    ]
    head = ("stage", "bubble", "of window", "warm-up", "steady", "cool-down", "send/recv")
    y = {"autorange": "reversed", "automargin": True, "type": "category"}
    expected = s.pipeline.expected_bubble_fraction if s.pipeline else 0.0
    line = {"type": "line", "xref": "x", "yref": "paper", "x0": 100 * (1 - expected), "x1": 100 * (1 - expected),
            "y0": 0, "y1": 1, "line": {"color": COMMUNICATION, "dash": "dot", "width": 2}}  # fmt: skip
    axes = plots.layout(
        plots.axis("share of the schedule (%)", range=[0, 100]), y, barmode="stack", shapes=[line]
    )
    words = "Busy and bubble of each stage; dotted: what the schedule alone would leave busy."
    numbers = Table("Stages, medians per iteration", head, rows)
    return Figure("pipeline-stages", words, data, axes, plots.bars_height(len(stages)), numbers, wide=True)
