"""The page's section about time: where each device's window went, and its longest gaps."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device, Summary
from harness.report import plots
from harness.report.numbers import duration, middle, of, percent, short
from harness.report.page_inputs import Inputs
from harness.report.page_parts import Figure, Section, Table, table
from harness.report.plots_palette import (
    CAUSES,
    COMMUNICATION,
    COMPUTE,
    IDLE,
    MEMORY,
)

_MANY = 48  # devices from which only the busiest and the idlest get a bar; the heatmap shows all


def split_section(s: Summary, inputs: Inputs) -> Section:
    """Stacked bars per device, idle by cause, and the heatmap of all devices over time."""
    devices = [d for d in s.devices if d.window_ns]
    if not devices:
        return Section(
            "split", "Where the time went", note="No trace: only the training's own clock is known."
        )
    figures = [_split_figure(*_shown(devices)), *([inputs.heat] if inputs.heat else [])]
    lead = (
        "One bar is one device's window of profiled steps. Striped: communication hidden behind compute. "
        "Orange: communication with nothing computed meanwhile. Everything right of it is idle, by cause."
    )
    return Section("split", "Where the time went", lead, figures, _gap_table(s))


def _label(d: Device, devices: Sequence[Device]) -> str:
    who = f"rank {d.rank}" if d.rank is not None else f"device {d.device}"
    several = len({(x.rank, x.device) for x in devices}) > len({x.rank for x in devices})
    return f"{who}, device {d.device}" if d.rank is not None and several else who


def _shown(devices: Sequence[Device]) -> tuple[Sequence[Device], int]:
    """All devices when they are few, else the busiest and the idlest; and how many there are."""
    if len(devices) <= _MANY:
        return devices, len(devices)
    ordered = sorted(devices, key=lambda d: (d.idle_ns or 0) / d.window_ns)
    return [*ordered[: _MANY // 2], *ordered[-_MANY // 2 :]], len(devices)


def _split_figure(devices: Sequence[Device], of_all: int) -> Figure:
    labels = [_label(d, devices) for d in devices]

    def share(values: Sequence[int]) -> list[float]:
        return [round(100 * v / d.window_ns, 3) for v, d in zip(values, devices, strict=True)]

    alone = [d.compute_ns - d.overlapped_communication_ns for d in devices]
    data = [
        plots.share("compute", share(alone), labels, COMPUTE),
        plots.overlapped("compute and communication", share([d.overlapped_communication_ns for d in devices]), labels),
        plots.share(
            "exposed communication", share([d.exposed_communication_ns for d in devices]), labels, COMMUNICATION
        ),
        plots.share("copies alone", share([d.exposed_memory_ns for d in devices]), labels, MEMORY),
        *(
            plots.share(f"idle: {cause}", share([_cause(d, cause) for d in devices]), labels, color)
            for cause, color in CAUSES.items()
        ),
        plots.share("idle, cause unknown", share([_unexplained(d) for d in devices]), labels, IDLE),
    ]  # fmt: skip
    data = [trace for trace in data if max(trace["x"]) >= 0.05]
    y = {"autorange": "reversed", "automargin": True, "type": "category"}
    axes = plots.layout(plots.axis("share of the window (%)", range=[0, 100]), y, barmode="stack")
    some = f"the {_MANY // 2} busiest and the {_MANY // 2} idlest of {of_all} devices"
    every = f"{of_all} device{'s' * (of_all > 1)}"
    words = f"Share of the window of {every if of_all == len(devices) else some}: " + _mean_words(devices)
    return Figure(
        "time-split",
        words,
        data,
        axes,
        plots.bars_height(len(devices)),
        _split_table(devices, labels),
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
    return (
        ", ".join(f"{w} {of(sum(getattr(d, f) or 0 for d in devices), total)}" for w, f in parts)
        + " on average."
    )


def _split_table(devices: Sequence[Device], labels: Sequence[str]) -> Table:
    rows = [
        [
            label,
            duration(d.window_ns),
            of(d.compute_ns, d.window_ns),
            of(d.communication_ns, d.window_ns),
            of(d.exposed_communication_ns, d.window_ns),
            percent(d.overlap_fraction),
            of(d.memory_ns, d.window_ns),
            of(d.idle_ns, d.window_ns),
            ", ".join(f"{c.cause} {of(c.duration_ns, d.window_ns)}" for c in d.idle_causes) or "–",
        ]
        for label, d in zip(labels, devices, strict=True)
    ]
    head = (
        "device",
        "window",
        "compute",
        "communication",
        "exposed",
        "overlap",
        "memory",
        "idle",
        "idle by cause",
    )
    return Table("Shares of the window; overlap is the share of communication that compute hides", head, rows)


def _gap_table(s: Summary) -> list[Table]:
    gaps = sorted(((g, d) for d in s.devices for g in d.longest_gaps), key=lambda x: -x[0].duration_ns)[:8]
    rows = [
        [
            duration(g.duration_ns),
            g.cause,
            _label(d, s.devices),
            middle(g.range or "–", 50),
            *(short(name or "–", 50) for name in (g.before, g.after)),
        ]
        for g, d in gaps
    ]
    head = ("length", "cause", "device", "inside range", "after", "before")
    return table("The longest stretches in which a device did nothing", head, rows, left=6)
