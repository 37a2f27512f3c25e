"""The page's sections about the machine: the monitor's samples, energy, and the host's launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from harness.analysis.summary import Summary
from harness.format.format import amount
from harness.monitor.gaps import pieces
from harness.monitor.samples import Recording, Series
from harness.monitor.summary import counted, integrate
from harness.report.elements import Figure, Section, table
from harness.report.page.inputs import Inputs, StepRecord
from harness.report.palette import COMPUTE, IDLE, of_series
from harness.report.plots import plotly_json
from harness.report.plots.network import network_figure
from harness.report.tables.catalogue import page_tables

_MOST_POINTS = 600  # of one line: a screen does not show more
_GIB = 2**30
_MOST_NODES = 16  # with plots: hundreds would fill the page
_PLOTS: tuple[tuple[str, str, float], ...] = (
    ("utilization_percent", "utilisation (%)", 1.0),
    ("memory_used_bytes", "memory in use (GiB)", _GIB),
    ("power_watts", "power (W)", 1.0),
)


def machine_section(s: Summary, inputs: Inputs) -> Section:
    """Utilisation, memory and power over time, one plot per node and quantity; energy per token. Empty without any."""
    network = network_figure(s)
    figures = [
        *([network] if network else []),
        *(f for r in inputs.monitors[:_MOST_NODES] for f in _node(r, inputs)),
    ]
    tables = [*page_tables(s, "machine"), *_energy(inputs)]
    if not figures and not tables:
        return Section("machine", "Monitor")
    lead = "Samples of every node during the training. Shaded: the profiled steps."
    if len(inputs.monitors) > _MOST_NODES:
        lead += f" {_MOST_NODES} of {len(inputs.monitors)} nodes have plots; the table has all nodes."
    return Section("machine", "Monitor", lead, figures, tables)


def _node(recording: Recording, inputs: Inputs) -> Iterable[Figure]:
    for column, title, scale in _PLOTS:
        data = [x for d in recording.devices if (x := _line(recording, d, column, scale)) is not None]
        if not data:
            continue
        if column != "power_watts":
            data += _whole_machine(recording, column, scale)
        values = [v for trace in data for v in trace["y"] if v is not None]
        words = f"{title[0].upper()}{title[1:]} on node {recording.host}: from {min(values):.3g} to {max(values):.3g}."
        y = plotly_json.axis(title, rangemode="tozero")
        axes = plotly_json.layout("time since the monitor's start (s)", y, shapes=_window(recording, inputs))
        yield Figure(f"monitor-{column}-{recording.folder.name}", words, data, axes, 260)


def _line(recording: Recording, device: Series, column: str, scale: float) -> dict[str, Any] | None:
    points = _thinned(device, column)
    if not points:
        return None
    x = [round((at - recording.span_ns[0]) / 1e9, 2) for at, _ in points]
    y = [None if value is None else round(value / scale, 3) for _, value in points]
    name = f"GPU {device.index}" if recording.of_gpus else device.name
    return plotly_json.line(name, x, y, of_series(device.index))


def _whole_machine(recording: Recording, column: str, scale: float) -> list[dict[str, Any]]:
    """A dashed line for the whole machine, if the source also measures the job's processes alone."""
    lines = (_line(recording, d, f"machine_{column}", scale) for d in recording.devices)
    style = {"name": "whole machine", "mode": "lines", "line": {"color": IDLE, "dash": "dash", "width": 1.3}}
    return [line | style for line in lines if line is not None]


def _thinned(device: Series, column: str) -> list[tuple[int, float | None]]:
    """At most about _MOST_POINTS: the means of neighbours; in each gap one without a value, which ends the line."""
    points = device.points(column)
    size = max(1, -(-len(points) // _MOST_POINTS))
    found: list[tuple[int, float | None]] = []
    for piece in pieces(points, device.gaps):
        found += [(piece[0][0] - 1, None)] if found else []
        chunks = [piece[i : i + size] for i in range(0, len(piece), size)]
        found += [(chunk[0][0], fmean(v for _, v in chunk)) for chunk in chunks]
    return found


def _window(recording: Recording, inputs: Inputs) -> list[dict[str, Any]]:
    span = _profiled(inputs.steps.values())
    if span is None:
        return []
    low, high = ((t - recording.span_ns[0]) / 1e9 for t in span)
    return [plotly_json.band(low, high, COMPUTE)]


def _profiled(ranks: Iterable[Sequence[StepRecord]]) -> tuple[int, int] | None:
    """Unix nanoseconds from the first profiled step's start to the last one's end, over all ranks."""
    chosen = [x for steps in ranks for x in steps if x.phase == "active"]
    if not chosen:
        return None
    return min(x.unix_ns for x in chosen), max(x.unix_ns + x.step_ns for x in chosen)


def _energy(inputs: Inputs) -> list[Any]:
    """Energy of the profiled steps, and of 1 000 tokens of them."""
    span = _profiled(inputs.steps.values())
    parts = [energy_within(d, *span) for r in inputs.monitors for d in r.devices] if span else []
    known = [x for x in parts if x is not None]
    tokens = sum(x.tokens for steps in inputs.steps.values() for x in steps if x.phase == "active")
    if not known or not tokens or len(known) < len(parts):
        return []
    total = sum(known)
    of = next((str(r.meta["power"]) for r in inputs.monitors if r.meta.get("power")), "the devices")
    rows = [[f"{amount(total, 'J')} of {of}", f"{tokens:,}", amount(1000 * total / tokens, "J")]]
    return table("Energy of the profiled steps", ("energy", "tokens", "per 1 000 tokens"), rows)


def energy_within(device: Series, start_ns: int, end_ns: int) -> float | None:
    """Joules between two moments: differences of the device's counter, else power integrated by trapezoids.

    Both are straight lines between samples. None when the samples do not cover the whole time: over a gap, only a
    counter that ran on is known, and only when the gap is over.
    """
    if any(before < moment < after for before, after in device.gaps for moment in (start_ns, end_ns)):
        return None
    metered = counted(device)
    for points in metered or pieces(device.points("power_watts"), device.gaps):
        first, last = _at(points, start_ns), _at(points, end_ns)
        if first is None or last is None:
            continue
        if metered:
            return last - first
        return integrate(
            [(start_ns, first), *(p for p in points if start_ns < p[0] < end_ns), (end_ns, last)]
        )
    return None


def _at(points: Sequence[tuple[int, float]], moment_ns: int) -> float | None:
    """The value at a moment, on the line between its neighbours; None outside."""
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if t0 <= moment_ns <= t1 and t1 > t0:
            return v0 + (v1 - v0) * (moment_ns - t0) / (t1 - t0)
    return None


def host_section(s: Summary, inputs: Inputs) -> Section:
    """How the host feeds the devices: launches, blocking calls, copies."""
    return Section("host", "How the host feeds the devices", tables=page_tables(s, "host"))
