"""The page's section about stragglers in a timeline of operations: their tables, and the workers as a heat map."""

from __future__ import annotations

from harness.analysis.summary import Stragglers, Summary
from harness.report.elements import Figure, Section
from harness.report.page.inputs import Inputs
from harness.report.plots import plotly_json
from harness.report.plots.pacing import SLOWER_AND_FASTER
from harness.report.tables.catalogue import page_tables

_TICKS = 16  # columns that have a tick each
_LEAST_END = 0.05  # of S beyond 1: the colours' end is at least this
_LEAD = (
    "The job's operations are replayed as they were and with ideal durations; S is the ratio of the two steps. S of an "
    "operation, a stage or a worker is that with its own durations and ideal ones everywhere else."
)


def stragglers_section(s: Summary, inputs: Inputs) -> Section:
    """The slowdown by operation, stage and worker; empty for traces of processes."""
    if s.slowdown is None:
        return Section("stragglers", "Slowdown by stragglers")
    return Section(
        "stragglers",
        "Slowdown by stragglers",
        _LEAD,
        [_heat(s.slowdown)],
        page_tables(s, "stragglers"),
    )


def _heat(slow: Stragglers) -> Figure:
    """A row per stage, a column per data-parallel rank."""
    place = {(worker.stage, worker.dp_rank): worker for worker in slow.workers}
    stages = sorted({stage for stage, _ in place})
    dps = sorted({dp for _, dp in place})
    cells = [
        [round(100 * (place[stage, dp].slowdown - 1), 2) if (stage, dp) in place else None for dp in dps]
        for stage in stages
    ]
    end = max([abs(x) for row in cells for x in row if x is not None] + [100 * _LEAST_END])
    data = [
        {
            "type": "heatmap",
            "name": "S − 1",
            "z": cells,
            "x": dps,
            "y": [f"stage {stage}" for stage in stages],
            "colorscale": SLOWER_AND_FASTER,
            "zmin": -end,
            "zmax": end,
            "hovertemplate": "%{y}, data-parallel rank %{x}: %{z:+} %<extra>S − 1</extra>",
            "colorbar": {"title": {"text": "S − 1 (%)", "side": "right"}, "thickness": 12},
        }
    ]
    each = {"dtick": 1} if len(dps) <= _TICKS else {}
    axes = plotly_json.layout(plotly_json.axis("data-parallel rank", **each), plotly_json.NAMES)
    words = (
        "How much slower the job is by each worker alone. A red row is a stage with more work, a red cell a slow "
        "worker; if all are red, no worker is the cause."
    )
    height = 150 + min(max(26 * len(stages), 60), 900)
    return Figure("straggler-workers", words, data, axes, height, wide=True)
