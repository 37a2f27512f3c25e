"""Tables about work, each declared once for the terminal and the page: kinds, phases, ranges, kernels, counters."""

from __future__ import annotations

from harness.analysis.summary import KindTime, Summary
from harness.format.format import apart, duration, percent, short
from harness.format.labels import work_word
from harness.report.elements import Table

TOP = 12  # rows of a table whose tail says little
_COUNTERS = 40
_UNKNOWN = 8
_TENSOR = "tensor"


def kind_label(k: KindTime) -> str:
    """A kind with its precision, where it has one."""
    return f"{k.kind} {k.precision}" if k.precision else k.kind


def kind_table(s: Summary) -> Table:
    """Time per kind of work, summed over devices."""
    rows = [[kind_label(k), duration(k.duration_ns), percent(k.share), f"{k.count:,}"] for k in s.kinds]
    graphs = any(d.communication_ns is None for d in s.devices)
    caption = "Kinds of work, all devices" + (
        "; communication: only outside of CUDA graphs" if graphs else ""
    )
    return Table(caption, ("kind", "time", "share", "count"), rows)


def phase_table(s: Summary) -> Table:
    """Device time per phase of training; empty where no phase is known."""
    known = any(p.phase != "other" for p in s.phases)
    rows = [
        [p.phase, duration(p.duration_ns), percent(p.share), duration(p.compute_ns), duration(p.communication_ns),
         f"{p.kernels:,}"]
        for p in s.phases
        if known
    ]  # fmt: skip
    head = ("phase", "time", "share", "compute", "communication", "count")
    return Table("Phases of training, on the devices", head, rows)


def range_table(s: Summary, width: int) -> Table:
    """The program's own ranges; operators of PyTorch are none. Without a device there is no work to tell."""
    shown = [r for r in s.ranges if r.instances and not r.name.startswith("aten::")][:TOP]
    rows = [
        [
            name,
            f"{r.instances:,}",
            duration(r.host_ns / r.instances),
            *(
                (duration(r.kernel_ns / r.instances), f"{r.kernels:,}", duration(r.idle_ns))
                if s.devices
                else "–––"
            ),
        ]
        for r, name in zip(shown, apart([r.name for r in shown], width), strict=True)
    ]
    work = work_word(s.devices)
    head = ("range", "instances", "host each", f"{work} each", work, "idle under it")
    return Table("The program's own ranges, on the host and on the devices", head, rows)


def kernel_table(s: Summary, width: int) -> Table:
    """The kernels (on a CPU: operators) that take most time."""
    shown = s.kernels[:TOP]
    rows = [
        [
            name,
            " ".join(filter(None, (k.kind, k.precision))),
            duration(k.duration_ns),
            percent(k.share),
            f"{k.count:,}",
            duration(k.mean_ns),
            duration(k.min_ns),
            duration(k.max_ns),
        ]
        for k, name in zip(shown, short([k.name for k in shown], width), strict=True)
    ]
    work = work_word(s.devices)
    head = (work.removesuffix("s"), "kind", "time", "share", "count", "mean", "shortest", "longest")
    return Table(f"The {len(rows)} {work} that take most time", head, rows, left=2)


def unknown_table(s: Summary, width: int) -> Table:
    """What no rule recognises."""
    shown = s.unclassified[:_UNKNOWN]
    names = short([k.name for k in shown], width)
    rows = [[name, duration(k.duration_ns), f"{k.count:,}"] for k, name in zip(shown, names, strict=True)]
    caption = "Not recognised (kind `other`); configs/kernels.yaml holds the rules"
    return Table(caption, (work_word(s.devices).removesuffix("s"), "time", "count"), rows)


def counter_table(s: Summary) -> Table:
    """Sampled hardware counters; the tensor cores' first."""
    found = [(m, d) for d in s.devices for m in d.metric_averages]
    found.sort(key=lambda x: (_TENSOR not in x[0].metric.lower(), x[0].metric, x[1].device))
    rows = [[m.metric, str(d.device), f"{m.mean:.1f}", f"{m.samples:,}"] for m, d in found[:_COUNTERS]]
    return Table("GPU counters, mean over the window", ("counter", "device", "mean", "samples"), rows)
