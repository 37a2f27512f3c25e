"""The table of a pipeline's stages, and the same in one line."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.display.format import percent
from harness.measure.page_data import PipelinePass
from harness.report.tables.table import Column, File, TableOf, plain


def stage_label(x: summary.PipelineStage | PipelinePass) -> str:
    return f"stage {x.stage}" + (f", rank {x.rank}" if x.rank is not None else "")


def pipeline_words(s: Summary) -> str:
    """The pipeline in one sentence: its shape, its bubble, and the schedule's own."""
    p = s.pipeline
    if p is None:
        return ""
    virtual = f", {p.virtual_stages} virtual stages" if p.virtual_stages > 1 else ""
    measured = f"{p.microbatches} micro-batches{virtual}. Bubble: {percent(p.mean_bubble_fraction)} measured"
    if p.stages is None or p.expected_bubble_fraction is None:
        return f"stages may be missing, {measured}; the expected bubble is therefore not known."
    alone = f"{percent(p.expected_bubble_fraction)}, (p − 1) / (m·v + p − 1)"
    return f"{p.stages} stages, {measured}; the schedule alone predicts {alone}."


def _stages(s: Summary) -> Sequence[summary.PipelineStage]:
    return s.pipeline.per_stage if s.pipeline else ()


STAGES = TableOf[summary.PipelineStage](
    caption="Stages; times are sums over the counted iterations",
    rows=_stages,
    columns=(
        Column("stage", stage_label),
        Column("bubble", "schedule_bubble_fraction"),
        Column("of window", "bubble_fraction"),
        Column("warm-up", "warmup_ns"),
        Column("steady", "steady_ns"),
        Column("cool-down", "cooldown_ns"),
        Column("send/recv", "send_recv_ns"),
    ),
    section="pipeline",
    terminal_caption=lambda s: f"Pipeline: {pipeline_words(s)}",
    file=File("pipeline", lambda s: map(plain, _stages(s))),
)
