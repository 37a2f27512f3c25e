"""Heatmaps of sampled counters over time: a GPU's counters by nsys, and each port of the network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.network import binned, rates_over_time
from harness.analysis.process.counters import MOST_COLUMNS, counter_of
from harness.analysis.summary import CounterOverTime, Device, NodeNetwork, Summary
from harness.common.display.format import amount
from harness.common.display.palette import COMMUNICATION, COMPUTE, MEMORY
from harness.report.elements import Figure
from harness.report.plots import plotly_json
from harness.report.plots.plots import Layer, distinct, heatmaps, height_of
from harness.report.tables.time import device_labels

_COLORS = {"compute": COMPUTE, "memory": MEMORY, "link": COMMUNICATION}
_MOST_ROWS = 64
_SAMPLED_BY = {"monitor": "the monitor", "nsys": "nsys"}
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
    layer = Layer(label, cells, "%", _COLORS[shown.part if shown else "compute"], end, scale="%")
    x = [round(middle / 1e6, 4) for middle in middles_ns]
    rows = distinct(device_labels([d for d, _ in known], s.devices))
    data = heatmaps([layer], x, rows, "%{{y}}, %{{x}} ms: %{{z}} {unit} {name}<extra></extra>")
    marks = _steps(known[0][0])
    axes = plotly_json.layout("time in the window (ms)", dict(plotly_json.NAMES), shapes=_lines(marks))
    mean = f"{sum(values) / len(values):.3g} % " if values else ""
    words = f"{label}: {mean}{shown.of if shown else ''} on average, by nsys, {width_ns / 1e6:.3g} ms a column."
    words += " Dotted: the start of each step." if marks else ""
    identity = re.sub(r"\W+", "-", label.lower()).strip("-")
    return Figure(f"counter-{identity}", words, data, axes, height_of(len(rows)))


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


def port_figure(s: Summary, step_begins_ns: Sequence[int] = ()) -> Figure | None:
    """GB/s of each port that leads out of a node, over time. step_begins_ns: unix time of the profiled steps."""
    known = [n for n in s.network if n.over_time and n.ports_over_time and not n.loopback]
    by = "nsys" if any(n.sampled_by == "nsys" for n in known) else "monitor"
    nodes = [n for n in known if n.sampled_by == by]
    over = [n.over_time for n in nodes if n.over_time]
    if not over:
        return None
    begin = min(o.start_ns for o in over)
    columns = max(len(o.sent_gb_per_s) for o in over)
    width_ns = -(-max(o.start_ns + o.column_ns * len(o.sent_gb_per_s) - begin for o in over) // columns)
    every = ((n, o, port) for n, o in zip(nodes, over, strict=True) for port in n.ports_over_time)
    whole = (p for p in every if len(p[2].sent_gb_per_s) == len(p[2].received_gb_per_s) == len(p[1].sent_gb_per_s))
    ports = list(whole)[:_MOST_ROWS]
    ways = {"sent": [p.sent_gb_per_s for _, _, p in ports], "received": [p.received_gb_per_s for _, _, p in ports]}
    cells = {
        way: [
            _rounded(binned(rates_over_time(o, values), begin, width_ns, columns))
            for (_, o, _), values in zip(ports, each, strict=True)
        ]
        for way, each in ways.items()
    }
    top = max((x or 0.0 for rows in cells.values() for row in rows for x in row), default=0.0) or 1e-9
    layers = [Layer(way, rows, "GB/s", COMMUNICATION, top) for way, rows in cells.items()]
    x = [round((i + 0.5) * width_ns / 1e9, 4) for i in range(columns)]
    rows = distinct([f"{n.node} · {port.port}" for n, _, port in ports])
    data = heatmaps(layers, x, rows, "%{{y}}, %{{x}} s: %{{z}} {unit} {name}<extra></extra>")
    marks = [(at - begin) / 1e9 for at in step_begins_ns if begin <= at < begin + width_ns * columns]
    axes = plotly_json.layout("time since the first sample (s)", dict(plotly_json.NAMES), shapes=_lines(marks))
    return Figure("ports", _port_words(nodes, top, width_ns, bool(marks)), data, axes, height_of(len(rows)), wide=True)


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(x) else float(f"{x:.4g}") for x in values.tolist()]


def _port_words(nodes: Sequence[NodeNetwork], top: float, width_ns: int, marked: bool) -> str:
    count = sum(len(n.ports_over_time) for n in nodes)
    steps = " Dotted: the start of each profiled step." if marked else ""
    return (
        f"Network ports ({count}), sampled by {_SAMPLED_BY[nodes[0].sampled_by]}, {width_ns / 1e9:.3g} s a column: all "
        f"traffic of the port, not only the job's. Highest: {amount(top * 1e9, 'B/s')} in one direction.{steps}"
    )
