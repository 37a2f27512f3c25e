"""One step of a pipeline as it ran."""

from __future__ import annotations

from collections.abc import Sequence

from harness.common.display.palette import COMPUTE
from harness.measure.page_data import PipelinePass
from harness.report.elements import Figure
from harness.report.plots import plotly_json
from harness.report.tables.pipeline import stage_label

_BACKWARD = "#7d6bc4"  # beside the blue of forward passes


def gantt_figure(passes: Sequence[PipelinePass]) -> Figure | None:
    """Forward and backward of every micro-batch of one step, a row per stage."""
    if not passes:
        return None
    ordered = sorted(passes, key=lambda p: (p.stage, -1 if p.rank is None else p.rank))
    stages = list(dict.fromkeys(map(stage_label, ordered)))
    data = []
    for forward, name, color in ((True, "forward", COMPUTE), (False, "backward", _BACKWARD)):
        mine = [p for p in passes if p.forward is forward]
        lengths = [round((p.end_ns - p.start_ns) / 1e6, 4) for p in mine]
        rows = list(map(stage_label, mine))
        data.append(
            plotly_json.bars(name, lengths, rows, color, base=[round(p.start_ns / 1e6, 4) for p in mine])
            | {
                "text": [str(p.number) for p in mine],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "hovertemplate": f"{name} of micro-batch %{{text}}: %{{x:.3f}} ms<extra>%{{y}}</extra>",
                "marker": {"color": color, "line": {"color": "rgba(255,255,255,0.8)", "width": 0.7}},
            }
        )
    y = {"type": "category", "categoryorder": "array", "categoryarray": stages,
         "autorange": "reversed", "automargin": True}  # fmt: skip
    x = "time since the step's start on each rank (ms)"
    axes = plotly_json.layout(x, y, barmode="overlay")
    words = "One step of the pipeline: forward and backward of each numbered micro-batch. Empty time is bubble."
    return Figure("pipeline-gantt", words, data, axes, plotly_json.bars_height(len(stages)), wide=True)
