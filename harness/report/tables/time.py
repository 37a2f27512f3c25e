"""Tables about time, each declared once for the terminal and the page: shares of the window, idle causes, gaps,
a pipeline's stages. Cells are text; which of them fit is for the reader of the table to say."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device, PipelineStage, Summary
from harness.format.format import amount, apart, duration, of, percent, short
from harness.format.known import that_know
from harness.format.labels import are_cpus, cause_word, is_cpu
from harness.report.elements import Table

_GAPS = 6


def device_label(d: Device, devices: Sequence[Device]) -> str:
    """The rank, and the device where that alone is not enough."""
    who = f"rank {d.rank}" if d.rank is not None else "process" if is_cpu(d) else f"device {d.device}"
    several = len({(x.rank, x.device) for x in devices}) > len({x.rank for x in devices})
    return f"{who}, device {d.device}" if d.rank is not None and several else who


def window_word(s: Summary) -> str:
    """What the window of the shares is, where no step could be counted not the steps."""
    return s.window.value if s.steps.duration else "device extent"


def split_table(devices: Sequence[Device], of_all: Sequence[Device], window: str = "steps") -> Table:
    """Shares of the window of some of a job's devices."""
    rows = [
        [
            device_label(d, of_all),
            duration(d.window_ns),
            of(d.compute_ns, d.window_ns),
            of(d.communication_ns, d.window_ns),
            of(d.exposed_communication_ns, d.window_ns),
            percent(d.overlap_fraction),
            of(d.memory_ns, d.window_ns),
            of(d.idle_ns, d.window_ns),
            amount(d.peak_memory_bytes),
            ", ".join(
                f"{cause_word(c.cause, is_cpu(d))} {of(c.duration_ns, d.window_ns)}" for c in d.idle_causes
            )
            or "–",
        ]
        for d in devices
    ]
    kind = "process (CPU)" if are_cpus(devices) else "device"
    head = (kind, "window", "compute", "communication", "exposed", "overlap", "memory", "idle", "peak memory",
            "idle by cause")  # fmt: skip
    caption = f"Where the time went, shares of the window ({window}); overlap: of communication, hidden behind compute"
    return Table(caption, head, rows)


def cause_table(s: Summary) -> Table:
    """Idle time of all devices by its cause."""
    cpu = are_cpus(s.devices)
    rows = [[cause_word(c.cause, cpu), duration(c.duration_ns), percent(c.share)] for c in s.idle_causes]
    knowing, every = len(that_know(s.devices, "idle_ns")), len(s.devices)
    of_which = "all devices" if knowing == every else f"{knowing} of {every} devices"
    return Table(f"Idle time by cause, {of_which}", ("cause", "time", "share of idle"), rows)


def gap_table(s: Summary, width: int) -> Table:
    """The longest idle stretches of any device, with what stands around them."""
    gaps = sorted(((g, d) for d in s.devices for g in d.longest_gaps), key=lambda x: -x[0].duration_ns)[
        :_GAPS
    ]
    ranges = apart([g.range or "–" for g, _ in gaps], width)
    before, after = (short([getattr(g, of) or "–" for g, _ in gaps], width) for of in ("before", "after"))
    rows = [
        [
            duration(g.duration_ns),
            cause_word(g.cause, is_cpu(d)),
            device_label(d, s.devices),
            *around,
        ]
        for (g, d), *around in zip(gaps, ranges, before, after, strict=True)
    ]
    head = ("length", "cause", "device", "inside range", "after", "before")
    return Table("The longest stretches in which a device did nothing", head, rows, left=6)


def stage_label(x: PipelineStage) -> str:
    """The stage, and its rank where that is known."""
    return f"stage {x.stage}" + (f", rank {x.rank}" if x.rank is not None else "")


def stage_table(s: Summary) -> Table:
    """Every stage's bubble and the parts of its schedule."""
    rows = [
        [
            stage_label(x),
            percent(x.schedule_bubble_fraction),
            percent(x.bubble_fraction),
            duration(x.warmup_ns),
            duration(x.steady_ns),
            duration(x.cooldown_ns),
            duration(x.send_recv_ns),
        ]
        for x in (s.pipeline.per_stage if s.pipeline else ())
    ]
    head = ("stage", "bubble", "of window", "warm-up", "steady", "cool-down", "send/recv")
    return Table("Stages; times are sums over the counted iterations", head, rows)


def pipeline_words(s: Summary) -> str:
    """The pipeline in one sentence: its shape, its bubble, and the schedule's own."""
    p = s.pipeline
    if p is None:
        return ""
    virtual = f", {p.virtual_stages} virtual stages" if p.virtual_stages > 1 else ""
    measured = f"{p.microbatches} micro-batches{virtual}. Bubble: {percent(p.mean_bubble_fraction)} measured"
    if p.stages is None or p.expected_bubble_fraction is None:
        return f"stages may be missing, {measured}; what theory expects is not known."
    alone = f"{percent(p.expected_bubble_fraction)}, (p − 1) / (m·v + p − 1)"
    return f"{p.stages} stages, {measured}; the schedule alone predicts {alone}."
