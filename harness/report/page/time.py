"""The page's section about time: the parts of each device's window, and its longest gaps."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device, Summary
from harness.format.device_time import busiest_and_idlest, unknown_ns, with_known
from harness.format.format import of
from harness.format.labels import are_cpus
from harness.report.elements import Figure, Section
from harness.report.page.inputs import Inputs
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.time import SPLIT, device_labels, labelled
from harness.report.window import OVERLAPPED, PARTS, part_label

_MANY = 48  # devices from which only the busiest and the idlest get a bar; the heatmap shows all


def split_section(s: Summary, inputs: Inputs) -> Section:
    """Stacked bars per device, idle by cause, and the heatmap of all devices over time; empty without a trace."""
    devices = [d for d in s.devices if d.window_ns]
    if not devices:
        return Section("split", "Where the time went")
    figures = [
        _split_figure(s, busiest_and_idlest(devices, _MANY, _MANY)),
        *([inputs.heat] if inputs.heat else []),
    ]
    lead = (
        "Each bar is the window of one device: its profiled steps. Striped: communication hidden behind compute. "
        "Orange: communication without compute. Green: copies without either. The rest of the bar is idle, by cause."
        + (" Sand: not known." if any(map(unknown_ns, devices)) else "")
    )
    return Section("split", "Where the time went", lead, figures, page_tables(s, "split"))


def _bars(devices: Sequence[Device], labels: Sequence[str]) -> list[plotly_json.PlotTrace]:
    """The parts of every device's window in per cent, without parts that are too small to see."""
    cpu, data = are_cpus(devices), []
    for name, part in PARTS.items():
        percents = [round(100 * part.ns(d) / d.window_ns, 3) for d in devices]
        label, striped = part_label(name, cpu), name == OVERLAPPED
        data.append(plotly_json.part_of_window(label, percents, labels, part.color, striped=striped))
    return [trace for trace in data if max(trace["x"]) >= 0.05]


def _split_figure(s: Summary, devices: Sequence[Device]) -> Figure:
    of_all = sum(1 for d in s.devices if d.window_ns)
    labels = device_labels(devices, s.devices)
    x = plotly_json.axis("share of the window (%)", range=[0, 100])
    axes = plotly_json.layout(x, plotly_json.NAMES, barmode="stack")
    some = f"the {_MANY // 2} busiest and the {_MANY // 2} idlest of {of_all} devices"
    every = f"{of_all} device{'s' * (of_all > 1)}"
    words = f"Share of the window of {every if of_all == len(devices) else some}: " + _mean_words(devices)
    data, height = _bars(devices, labels), plotly_json.bars_height(len(devices))
    return Figure("time-split", words, data, axes, height, SPLIT.of(labelled(devices, s), s), wide=True)


def _mean_words(devices: Sequence[Device]) -> str:
    total = sum(d.window_ns for d in devices)
    parts = (
        ("compute", "compute_ns"),
        ("exposed communication", "exposed_communication_ns"),
        ("copies alone", "exposed_memory_ns"),
        ("idle", "idle_ns"),
    )
    texts = (
        f"{word} {of(sum(getattr(d, field) for d in devices), total)}"
        if len(with_known(devices, field)) == len(devices)
        else f"{word} –"
        for word, field in parts
    )
    return ", ".join(texts) + " on average."
