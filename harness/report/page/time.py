"""The page's section about time: where each device's window went, and its longest gaps."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device, Summary
from harness.format.format import of
from harness.format.known import busiest_and_idlest, that_know, unknown_ns
from harness.format.labels import are_cpus, cause_word
from harness.report.elements import Figure, Section
from harness.report.page.inputs import Inputs
from harness.report.palette import CAUSES, COMMUNICATION, COMPUTE, IDLE, MEMORY, UNKNOWN
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.time import SPLIT, device_label, labelled

_MANY = 48  # devices from which only the busiest and the idlest get a bar; the heatmap shows all


def split_section(s: Summary, inputs: Inputs) -> Section:
    """Stacked bars per device, idle by cause, and the heatmap of all devices over time."""
    devices = [d for d in s.devices if d.window_ns]
    if not devices:
        return Section(
            "split", "Where the time went", note="No trace: only the training's own clock is known."
        )
    figures = [
        _split_figure(s, busiest_and_idlest(devices, _MANY, _MANY)),
        *([inputs.heat] if inputs.heat else []),
    ]
    lead = (
        "One bar is one device's window of profiled steps. Striped: communication hidden behind compute. "
        "Orange: communication with nothing computed meanwhile. Green: copies with neither. What is right of these "
        "is idle, by cause." + (" Sand: not known." if any(map(unknown_ns, devices)) else "")
    )
    return Section("split", "Where the time went", lead, figures, page_tables(s, "split"))


def _bars(devices: Sequence[Device], labels: Sequence[str]) -> list[plotly_json.Trace]:
    """The parts of every device's window, in per cent; those that are nowhere to be seen left out."""
    cpu = are_cpus(devices)

    def share(values: Sequence[int]) -> list[float]:
        return [round(100 * v / d.window_ns, 3) for v, d in zip(values, devices, strict=True)]

    both = [d.overlapped_communication_ns or 0 for d in devices]
    alone = [d.compute_ns - overlapped for d, overlapped in zip(devices, both, strict=True)]
    data = [
        plotly_json.share("compute", share(alone), labels, COMPUTE),
        plotly_json.overlapped("compute and communication", share(both), labels),
        plotly_json.share(
            "exposed communication", share([d.exposed_communication_ns or 0 for d in devices]), labels, COMMUNICATION
        ),
        plotly_json.share("copies alone", share([d.exposed_memory_ns for d in devices]), labels, MEMORY),
        *(
            plotly_json.share(
                f"idle: {cause_word(cause, cpu)}", share([_cause(d, cause) for d in devices]), labels, color
            )
            for cause, color in CAUSES.items()
        ),
        plotly_json.share("idle, cause unknown", share([_unexplained(d) for d in devices]), labels, IDLE),
        plotly_json.share("not known", share([unknown_ns(d) for d in devices]), labels, UNKNOWN),
    ]  # fmt: skip
    return [trace for trace in data if max(trace["x"]) >= 0.05]


def _split_figure(s: Summary, devices: Sequence[Device]) -> Figure:
    of_all = sum(1 for d in s.devices if d.window_ns)
    labels = [device_label(d, s.devices) for d in devices]
    y = {"autorange": "reversed", "automargin": True, "type": "category"}
    axes = plotly_json.layout(plotly_json.axis("share of the window (%)", range=[0, 100]), y, barmode="stack")
    some = f"the {_MANY // 2} busiest and the {_MANY // 2} idlest of {of_all} devices"
    every = f"{of_all} device{'s' * (of_all > 1)}"
    words = f"Share of the window of {every if of_all == len(devices) else some}: " + _mean_words(devices)
    return Figure(
        "time-split",
        words,
        _bars(devices, labels),
        axes,
        plotly_json.bars_height(len(devices)),
        SPLIT.of(labelled(devices, s), s),
        wide=True,
    )


def _cause(d: Device, cause: str) -> int:
    return sum(c.duration_ns for c in d.idle_causes if c.cause == cause)


def _unexplained(d: Device) -> int:
    return (d.idle_ns or 0) - sum(c.duration_ns for c in d.idle_causes) if d.idle_ns else 0


def _mean_words(devices: Sequence[Device]) -> str:
    total = sum(d.window_ns for d in devices)
    parts = (
        ("compute", "compute_ns"),
        ("exposed communication", "exposed_communication_ns"),
        ("copies alone", "exposed_memory_ns"),
        ("idle", "idle_ns"),
    )
    told = (
        f"{word} {of(sum(getattr(d, field) for d in devices), total)}"
        if len(that_know(devices, field)) == len(devices)
        else f"{word} –"
        for word, field in parts
    )
    return ", ".join(told) + " on average."
