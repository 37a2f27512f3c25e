"""The page's section about the use of memory: a stacked timeline by category, and the tables of one moment."""

from __future__ import annotations

from typing import Any

from harness.analysis.summary import Memory, MemoryTimeline, Summary
from harness.format.format import amount
from harness.report.elements import Figure, Section
from harness.report.page.inputs import Inputs
from harness.report.palette import MEMORY_OF
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.memory import MEANING, moment_words, shown_moment

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def memory_section(s: Summary, inputs: Inputs) -> Section:
    """The memory of tensors by use; empty for a run without --memory-snapshot."""
    memory = s.memory
    title = "Memory by use"
    if memory is None:
        return Section("memory", title)
    lead = _lead(memory)
    facts = [(name, MEANING[name]) for name in _seen(memory)]
    figures = [_area(memory)] if memory.timeline else []
    return Section("memory", title, lead, figures, page_tables(s, "memory"), facts)


def _lead(memory: Memory) -> str:
    moment = shown_moment(memory)
    if moment is None:
        return ""
    if memory.failure is not None:
        held = amount(moment.total_bytes)
        return f"The training ran out of memory: {moment_words(moment)}. Tensors held {held}. {moment.error}"
    return f"Tensors held the most memory, {amount(moment.total_bytes)}, here: {moment_words(moment)}."


def _seen(memory: Memory) -> list[str]:
    line = memory.timeline
    return [name for name, sizes in line.bytes.items() if any(sizes)] if line else []


def _area(memory: Memory) -> Figure:
    line = memory.timeline
    assert line is not None
    most = max(map(sum, zip(*line.bytes.values(), strict=True)), default=0)
    scale, unit = next(((s, u) for s, u in _UNITS if most >= s), _UNITS[-1])
    x = [round(at / 1e9, 6) for at in line.times_ns]
    data = [
        _layer(name, x, [round(size / scale, 4) for size in line.bytes[name]], MEMORY_OF[name], unit)
        for name in _seen(memory)
    ]
    y = plotly_json.axis(f"memory of tensors ({unit})", rangemode="tozero")
    axes = plotly_json.layout("time since the recording began (s)", y, shapes=_step_lines(line))
    words = (
        f"Memory of tensors on rank {line.rank}, by use; the highest is {amount(most)}. Each point is the highest "
        "moment of its interval. Dotted: a step begins."
    )
    return Figure("memory-timeline", words, data, axes, 380, wide=True)


def _layer(name: str, x: list[float], y: list[float], color: str, unit: str) -> dict[str, Any]:
    style = {
        "mode": "lines",
        "stackgroup": "memory",
        "fillcolor": color,
        "line": {"color": color, "width": 0.5},
    }
    hover = f"%{{y:.4~g}} {unit}<extra>{name}</extra>"
    return plotly_json.line(name, x, y, color) | style | {"hovertemplate": hover}


def _step_lines(line: MemoryTimeline) -> list[dict[str, Any]]:
    """Where steps begin; of many steps none, since the lines would hide the rest."""
    if len(line.steps) > 40:
        return []
    return [
        {"type": "line", "xref": "x", "yref": "paper", "x0": at / 1e9, "x1": at / 1e9, "y0": 0, "y1": 1,
         "line": {"color": "#9aa0a6", "dash": "dot", "width": 1}}
        for at in line.steps.values()
    ]  # fmt: skip
