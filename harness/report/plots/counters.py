"""Heatmaps of a GPU's counters over time, as nsys samples them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from harness.analysis.process.counters import MOST_COLUMNS, counter_of
from harness.analysis.summary import CounterOverTime, Device, Summary
from harness.common.display.palette import COMMUNICATION, COMPUTE, MEMORY
from harness.report.elements import Figure
from harness.report.plots import plotly_json
from harness.report.tables.time import device_labels

_COLORS = {"compute": COMPUTE, "memory": MEMORY, "link": COMMUNICATION}
_MOST_ROWS = 64
_MOST_MARKS = 40  # lines between steps
_WHOLE = 100.0


def counter_figures(s: Summary) -> list[Figure]:
    """A heatmap of each counter that nsys sampled, with a row per device."""
    devices = [d for d in s.devices if d.counters][:_MOST_ROWS]
    names = dict.fromkeys(counter.metric for d in devices for counter in d.counters if _is_whole(counter))
    return [_counter(s, name, devices) for name in names]


def _counter(s: Summary, name: str, devices: Sequence[Device]) -> Figure:
    known = [(d, c) for d in devices for c in d.counters if c.metric == name and _is_whole(c)]
    columns = max(len(c.mean) for _, c in known)
    width_ns = -(-max(c.column_ns * len(c.mean) for _, c in known) // columns)
    middles_ns = [round((i + 0.5) * width_ns) for i in range(columns)]
    places = [[middle // c.column_ns for middle in middles_ns] for _, c in known]
    cells = [[c.mean[i] if i < len(c.mean) else None for i in each] for (_, c), each in zip(known, places, strict=True)]
    values = [x for row in cells for x in row if x is not None]
    shown = counter_of(name)
    is_part = shown is None or shown.part == "compute"
    end = _WHOLE if is_part else max(values, default=0.0) or _WHOLE  # little traffic is seen too
    label = re.sub(r" *\[.*\]", "", name)
    rows = _distinct(device_labels([d for d, _ in known], s.devices))
    heat = {
        "type": "heatmap",
        "name": label,
        "z": cells,
        "x": [round(middle / 1e6, 4) for middle in middles_ns],
        "y": rows,
        "colorscale": _COLORS[shown.part if shown else "compute"],
        "zmin": 0,
        "zmax": end,
        "hovertemplate": f"%{{y}}, %{{x}} ms: %{{z}} % {label}<extra></extra>",
        "colorbar": {"title": {"text": "%", "side": "right"}, "thickness": 12},
    }
    marks = _steps(known[0][0])
    axes = plotly_json.layout("time in the window (ms)", dict(plotly_json.NAMES), shapes=_lines(marks))
    mean = f"{sum(values) / len(values):.3g} % " if values else ""
    words = f"{label}: {mean}{shown.of if shown else ''} on average, by nsys, {width_ns / 1e6:.3g} ms a column."
    words += " Dotted: the start of each step." if marks else ""
    identity = re.sub(r"\W+", "-", label.lower()).strip("-")
    return Figure(f"counter-{identity}", words, [heat], axes, _height_of(len(rows)))


def _distinct(names: list[str]) -> list[str]:
    """Plotly draws two rows with one name as one row."""
    return names if len(set(names)) == len(names) else [f"{name} ({i})" for i, name in enumerate(names)]


def _height_of(rows: int) -> int:
    """Pixels that suit two rows as well as the most."""
    return 150 + min(max(rows * (26 if rows <= 24 else 14 if rows <= 40 else 5), 60), 900)


def _is_whole(counter: CounterOverTime) -> bool:
    """A summary may be somebody else's."""
    return counter.column_ns > 0 and 0 < len(counter.mean) <= MOST_COLUMNS


def _steps(d: Device) -> list[float]:
    """When a device's steps after the first start, milliseconds in its window; empty if they are not all of it."""
    lengths = [step.window_ns for step in d.steps]
    if sum(lengths) != d.window_ns:
        return []
    return [at / 1e6 for at in accumulate(lengths[:-1])]


def _lines(marks: Sequence[float]) -> list[dict[str, Any]]:
    return [plotly_json.upright(at, "#888888", "dot", 1) for at in marks] if len(marks) <= _MOST_MARKS else []
