"""A Summary as text for a terminal: what is doubtful first, then where the time went. Knows only the
Summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from harness.analysis.summary import Device, Finding, Summary, Verdict
from harness.report import verdict
from harness.report.numbers import amount, duration, of, percent, short

WIDTH = 118
_MARKS = {Verdict.GOOD: "·", Verdict.DOUBTFUL: "?", Verdict.UNUSABLE: "!"}
MANY_DEVICES = 16  # more than these are shown as a spread and the busiest and idlest
TOP = 10
NOTICEABLE = 0.005  # share of the devices' time from which advice is worth a line


def render(summary: Summary) -> str:
    """The whole report of one job, lines at most WIDTH wide."""
    blocks = [block for section in _SECTIONS if (block := section(summary))]
    return "\n\n".join("\n".join(_cut(line, WIDTH) for line in block) for block in blocks) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns under a head; the first `left` columns read from the left, numbers from the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _header(s: Summary) -> list[str]:
    names = sorted(
        {d.name for d in s.devices if d.name} or {t.device_name for t in s.training if t.device_name}
    )
    files = sorted({x.path for x in s.sources})
    read = f"{len(files)} trace{'s' * (len(files) != 1)} ({', '.join(sorted({x.tool for x in s.sources}))})"
    where = _place(files)
    facts = [
        read if files else "no traces",
        f"world size {s.world_size}" if s.world_size else "",
        f"hosts {', '.join(s.hosts[:4])}{' …' if len(s.hosts) > 4 else ''}" if s.hosts else "",
        ", ".join(names),
        s.backend or "",
    ]
    return [where or (s.run or {}).get("job_id", "run"), "  " + " · ".join(f for f in facts if f)]


def _place(files: list[str]) -> str:
    """The file, or the folder that holds them all; of a run, its own directory."""
    if not files:
        return ""
    folder = PurePath(files[0]).parent
    if folder.name in ("torch", "nsys"):
        return str(folder.parent)
    return files[0] if len(files) == 1 else str(folder)


def _quality(s: Summary) -> list[str]:
    lines = [f"Recording: {s.quality.verdict.value}"]
    for (severity, what), found in _alike(s.quality.findings).items():
        more = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
        lines.append(f"  {_MARKS[severity]} {what}: {found[0].evidence}{more}")
    return lines + [f"  – {w.field} withheld: {w.reason}" for w in s.quality.withheld]


def _alike(findings: Iterable[Finding]) -> dict[tuple[Verdict, str], list[Finding]]:
    groups: dict[tuple[Verdict, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.what), []).append(finding)
    return groups


def _steps(s: Summary) -> list[str]:
    if s.steps.duration is None:
        return ["Steps: none found; the window is the devices' own extent"] if s.sources else []
    d, left_out = s.steps.duration, []
    for count, why in (
        (s.steps.excluded_warmup, "warm-up"),
        (s.steps.excluded_cut_off, "cut off"),
        (s.steps.excluded_empty, "without work"),
    ):
        left_out += [f"{count} {why}"] if count else []
    lines = [
        f"Steps: {_cut(s.steps.source, 60)}, {s.steps.counted} counted of {s.steps.found}{_over(s)}"
        + (f" ({', '.join(left_out)} left out)" if left_out else ""),
        f"  median {duration(d.median_ns)}   p10 {duration(d.p10_ns)}   p90 {duration(d.p90_ns)}"
        f"   min {duration(d.min_ns)}   max {duration(d.max_ns)}",
    ]
    if s.steps.straggler_score is not None and s.steps.slowest_rank is not None:
        lines.append(
            f"  slowest rank {s.steps.slowest_rank}: {s.steps.straggler_score:.3f} × the median rank"
        )
    return lines


def _over(s: Summary) -> str:
    return f" over {len(s.steps.per_rank)} ranks" if len(s.steps.per_rank) > 1 else ""


def _split(s: Summary) -> list[str]:
    if not s.devices:
        return []
    kind = "device" if s.devices[0].device_kind == "gpu" else "process (CPU)"
    head = (kind, "window", "compute", "communic.", "exposed", "overlap", "memory", "idle", "peak memory")
    lines = [f"Where the time went, share of the window ({s.window.value})"]
    shown, note = _choose(s.devices)
    return lines + table(head, [_split_row(d) for d in shown]) + note


def _choose(devices: list[Device]) -> tuple[list[Device], list[str]]:
    if len(devices) <= MANY_DEVICES:
        return devices, []
    ordered = sorted(devices, key=lambda d: (d.idle_ns or 0) / max(d.window_ns, 1))
    return ordered[:5] + ordered[-5:], [f"  … the 5 busiest and the 5 idlest of {len(devices)} are shown"]


def _split_row(d: Device) -> list[str]:
    label = f"device {d.device}" if d.device_kind == "gpu" else ""
    who = " ".join(filter(None, (f"rank {d.rank}" if d.rank is not None else "", label))) or "process"
    return [
        who,
        duration(d.window_ns),
        of(d.compute_ns, d.window_ns),
        of(d.communication_ns, d.window_ns),
        of(d.exposed_communication_ns, d.window_ns),
        percent(d.overlap_fraction),
        of(d.memory_ns, d.window_ns),
        of(d.idle_ns, d.window_ns),
        amount(d.peak_memory_bytes),
    ]


def _kinds(s: Summary) -> list[str]:
    rows = [
        [
            " ".join(filter(None, (k.kind, k.precision))),
            duration(k.duration_ns),
            percent(k.share),
            f"{k.count:,}",
        ]
        for k in s.kinds
    ]
    return ["Kinds of work, all devices", *table(("kind", "time", "share", "count"), rows)] if rows else []


def _phases(s: Summary) -> list[str]:
    if all(p.phase == "other" for p in s.phases):
        return []
    rows = [
        [
            p.phase,
            duration(p.duration_ns),
            percent(p.share),
            duration(p.compute_ns),
            duration(p.communication_ns),
            f"{p.kernels:,}",
        ]
        for p in s.phases
    ]
    head = ("phase", "time", "share", "compute", "communic.", "count")
    return ["Phases of training, on the devices", *table(head, rows)]


def _idle(s: Summary) -> list[str]:
    if not s.idle_causes:
        return []
    rows = [[c.cause, duration(c.duration_ns), percent(c.share)] for c in s.idle_causes]
    gaps = sorted((g for d in s.devices for g in d.longest_gaps), key=lambda g: -g.duration_ns)[:5]
    lines = ["Idle time by cause, all devices", *table(("cause", "time", "share of idle"), rows)]
    if gaps:
        shown = [
            [duration(g.duration_ns), g.cause, _cut(g.range or "–", 40), short(g.after or "–", 40)]
            for g in gaps
        ]
        lines += ["  longest gaps", *table(("length", "cause", "inside", "until"), shown, left=4)]
    return lines


def _ranges(s: Summary) -> list[str]:
    rows = [
        [
            _cut(r.name, 44),
            f"{r.instances:,}",
            duration(r.host_ns / r.instances) if r.instances else "–",
            duration(r.kernel_ns / r.instances) if r.instances else "–",
            f"{r.kernels:,}",
            duration(r.idle_ns),
        ]
        for r in s.ranges
        if r.instances and not r.name.startswith("aten::")
    ][:TOP]
    work = "operators" if s.devices and s.devices[0].device_kind == "cpu" else "kernels"
    head = ("range", "instances", "host each", f"{work} each", work, "idle under it")
    return ["Ranges of the program, on the host and on the devices", *table(head, rows)] if rows else []


def _kernels(s: Summary) -> list[str]:
    rows = [
        [
            short(k.name),
            k.kind,
            duration(k.duration_ns),
            percent(k.share),
            f"{k.count:,}",
            duration(k.mean_ns),
        ]
        for k in s.kernels[:TOP]
    ]
    lines = ["Longest kernels", *table(("kernel", "kind", "time", "share", "count", "mean"), rows, left=2)]
    if s.unclassified:
        lines += [
            "  not recognised (kind `other`): " + ", ".join(short(k.name, 40) for k in s.unclassified[:5])
        ]
    return lines if rows else []


def _collectives(s: Summary) -> list[str]:
    rows = [
        [
            c.kind,
            _cut(c.group or "–", 16),
            c.dtype or "–",
            str(c.group_size or "–"),
            f"{c.count:,}",
            amount(c.bytes / c.count) if c.bytes is not None and c.count else "–",
            duration(c.mean_ns),
            percent(c.waiting_fraction),
            f"{c.algorithm_bandwidth_gb_per_s:.3g}" if c.algorithm_bandwidth_gb_per_s is not None else "–",
            f"{c.bus_bandwidth_gb_per_s:.3g}" if c.bus_bandwidth_gb_per_s is not None else "–",
        ]
        for c in s.collectives[:TOP]
    ]
    head = (
        "collective",
        "group",
        "type",
        "ranks",
        "count",
        "bytes each",
        "mean",
        "waiting",
        "alg GB/s",
        "bus GB/s",
    )
    if not rows:
        return []
    lines = [
        "Collectives (waiting: beyond the fastest rank of the same collective)",
        *table(head, rows, left=2),
    ]
    lines += [f"  straggler: rank {x.rank}, {x.evidence}" for x in s.stragglers]
    lines += [
        f"  clock of {c.host}: {duration(c.offset_ns)} ahead, residual {duration(c.residual_ns)}"
        for c in s.clocks
        if c.collectives
    ]
    return lines


def _pipeline(s: Summary) -> list[str]:
    p = s.pipeline
    if p is None:
        return []
    rows = [
        [
            f"{x.stage}",
            "–" if x.rank is None else str(x.rank),
            percent(x.schedule_bubble_fraction),
            percent(x.bubble_fraction),
            duration(x.warmup_ns),
            duration(x.steady_ns),
            duration(x.cooldown_ns),
            duration(x.send_recv_ns),
        ]
        for x in p.per_stage
    ]
    head = ("stage", "rank", "bubble", "of window", "warm-up", "steady", "cool-down", "send/recv")
    virtual = f", {p.virtual_stages} virtual stages" if p.virtual_stages > 1 else ""
    return [
        f"Pipeline: {p.stages} stages, {p.microbatches} micro-batches{virtual}; bubble "
        f"{percent(p.mean_bubble_fraction)}, the schedule alone predicts {percent(p.expected_bubble_fraction)}",
        *table(head, rows),
    ]


def _launches(s: Summary) -> list[str]:
    rows = [
        [
            "–" if x.rank is None else str(x.rank),
            f"{x.kernels:,}",
            f"{x.kernels_per_step:,.0f}" if x.kernels_per_step else "–",
            duration(x.median_kernel_ns),
            percent(x.short_kernel_fraction),
            duration(x.median_delay_ns),
            duration(x.p90_delay_ns),
        ]
        for x in s.launches[:MANY_DEVICES]
    ]
    head = ("rank", "kernels", "per step", "median kernel", "under 10 µs", "median delay", "p90 delay")
    return (
        ["Launches (delay: from the launching call to the kernel's start)", *table(head, rows)]
        if rows
        else []
    )


def _copies(s: Summary) -> list[str]:
    rows = [
        [
            c.direction,
            f"{c.count:,}",
            amount(c.bytes),
            duration(c.duration_ns),
            f"{c.bandwidth_gb_per_s:.3g}" if c.bandwidth_gb_per_s is not None else "–",
            f"{c.pageable_count:,}",
        ]
        for c in s.copies
    ]
    if not rows:
        return []
    lines = [
        "Memory copies and sets",
        *table(("direction", "count", "bytes", "time", "GB/s", "pageable"), rows),
    ]
    total = sum(d.window_ns for d in s.devices)
    pageable = [c for c in s.copies if c.pageable_ns > NOTICEABLE * total]  # an .item() is no reason to pin
    lines += [
        f"  ! {c.pageable_count:,} copies {c.direction.removeprefix('copy ')} use pageable memory "
        f"({duration(c.pageable_ns)}): pin the host buffers (pin_memory=True)"
        for c in pageable
    ]
    return lines


def _counters(s: Summary) -> list[str]:
    rows = [
        [m.metric, f"{d.device}", f"{m.mean:.1f}", f"{m.samples:,}"]
        for d in s.devices
        for m in d.metric_averages
    ][: 4 * TOP]
    return (
        ["GPU counters, mean over the window", *table(("counter", "device", "mean", "samples"), rows)]
        if rows
        else []
    )


def _training(s: Summary) -> list[str]:
    rows = [
        [
            str(t.rank),
            f"{t.steps_counted}/{t.steps_total}",
            duration(t.median_step_ns),
            duration(t.median_data_ns),
            duration(t.median_forward_ns),
            duration(t.median_backward_ns),
            duration(t.median_optimizer_ns),
            amount(t.tokens_per_s, "tokens/s"),
            f"{t.last_loss:.4f}" if t.last_loss is not None else "–",
            amount(t.peak_memory_bytes),
            t.status or "–",
        ]
        for t in s.training[:MANY_DEVICES]
    ]
    if not rows:
        return []
    head = (
        "rank",
        "steps",
        "step",
        "data",
        "forward",
        "backward",
        "optimizer",
        "speed",
        "loss",
        "peak mem",
        "status",
    )
    lines = [
        f"Training's own clock (medians of {s.training[0].phase_counted or 'all'} steps)",
        *table(head, rows),
    ]
    e = s.efficiency
    if e is not None and e.tokens_per_s is not None:
        lines.append(
            f"  all ranks: {amount(e.tokens_per_s, 'tokens/s')}, {amount(e.samples_per_s, 'samples/s')}"
            + (
                f", {amount(e.model_flops_per_s_per_device, 'FLOP/s')} per device"
                if e.model_flops_per_s_per_device
                else ""
            )
            + (f", MFU {percent(e.mfu)} of {e.peak_source}" if e.mfu is not None else "")
        )
    return lines


def _monitor(s: Summary) -> list[str]:
    rows = [
        [
            f"{m.node} {m.device}",
            m.name,
            "–" if m.mean_utilization_percent is None else f"{m.mean_utilization_percent:.0f} %",
            amount(m.peak_memory_bytes),
            "–" if m.mean_power_watts is None else f"{m.mean_power_watts:.0f} W",
            amount(m.energy_joules, "J"),
        ]
        for m in s.monitor
    ]
    head = ("node, device", "name", "utilisation", "peak memory", "mean power", "energy")
    return ["Monitor", *table(head, rows, left=2)] if rows else []


def render_hta(summary: Summary) -> str:
    """Only HolisticTraceAnalysis 0.5.0's own numbers."""
    rows = [
        [
            PurePath(h.source).name,
            f"{h.total_us:.0f}",
            f"{h.idle_us:.0f}",
            f"{h.compute_us:.0f}",
            f"{h.noncompute_us:.0f}",
            "–" if h.overlap_pct is None else f"{h.overlap_pct:.2f}",
        ]
        for h in summary.hta
    ]
    head = ("trace", "total µs", "idle µs", "compute µs", "non-compute µs", "overlap %")
    lines = ["As HolisticTraceAnalysis 0.5.0 counts (last step dropped, rounded to µs)", *table(head, rows)]
    return (
        "\n".join(
            lines
            if rows
            else ["HolisticTraceAnalysis reads GPU traces of torch.profiler only; there is none here"]
        )
        + "\n"
    )


_SECTIONS: tuple[Callable[[Summary], list[str]], ...] = (
    _header,
    verdict.lines,
    _quality,
    _steps,
    _split,
    _kinds,
    _phases,
    _idle,
    _ranges,
    _kernels,
    _collectives,
    _pipeline,
    _launches,
    _copies,
    _counters,
    _training,
    _monitor,
)
