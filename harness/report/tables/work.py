"""The tables about work: kinds, phases, ranges, kernels, counters."""

from __future__ import annotations

from harness.analysis.summary import (
    Device,
    KernelTime,
    KindTime,
    MetricAverage,
    PhaseTime,
    RangeTime,
    Summary,
)
from harness.format.format import apart, duration, percent, short
from harness.format.labels import work_word
from harness.report.tables.table import Column, TableOf, file_of, file_per_device

TOP = 12  # rows of a table whose tail says little
_COUNTERS = 40
_UNKNOWN = 8
_TENSOR = "tensor"


def kind_label(k: KindTime) -> str:
    """A kind with its precision, where it has one."""
    return f"{k.kind} {k.precision}" if k.precision else k.kind


def _works(s: Summary) -> str:
    return work_word(s.devices)


def _work(s: Summary) -> str:
    return work_word(s.devices).removesuffix("s")


def _kinds_caption(s: Summary) -> str:
    graphs = any(d.communication_ns is None for d in s.devices)
    return "Kinds of work, all devices" + ("; communication: only outside of CUDA graphs" if graphs else "")


KINDS = TableOf[KindTime](
    caption=_kinds_caption,
    rows=lambda s: s.kinds,
    columns=(
        Column("kind", kind_label),
        Column("time", lambda k: duration(k.duration_ns)),
        Column("share", lambda k: percent(k.share)),
        Column("count", lambda k: f"{k.count:,}"),
    ),
    figure="kinds",
    topic="kinds of work",
    file=file_of("kinds"),
)

PHASES = TableOf[PhaseTime](
    caption="Phases of training, on the devices",
    rows=lambda s: s.phases if any(p.phase != "other" for p in s.phases) else [],
    columns=(
        Column("phase", lambda p: p.phase),
        Column("time", lambda p: duration(p.duration_ns)),
        Column("share", lambda p: percent(p.share)),
        Column("compute", lambda p: duration(p.compute_ns)),
        Column("communication", lambda p: duration(p.communication_ns)),
        Column("count", lambda p: f"{p.kernels:,}"),
    ),
    section="phases",
    topic="phases",
    file=file_of("phases"),
)

_Range = tuple[RangeTime, bool]  # and whether the job has a device: without one no work can be shown


def _ranges(s: Summary) -> list[_Range]:
    """The program's own; operators of PyTorch are left out."""
    shown = [r for r in s.ranges if r.instances and not r.name.startswith("aten::")]
    return [(r, bool(s.devices)) for r in shown[:TOP]]


RANGES = TableOf[_Range](
    caption="The program's own ranges, on the host and on the devices",
    rows=_ranges,
    columns=(
        Column("range", lambda x: x[0].name, apart, page=60),
        Column("instances", lambda x: f"{x[0].instances:,}"),
        Column("host each", lambda x: duration(x[0].host_ns / x[0].instances)),
        Column(
            lambda s: f"{_works(s)} each",
            lambda x: duration(x[0].kernel_ns / x[0].instances) if x[1] else "–",
        ),
        Column(_works, lambda x: f"{x[0].kernels:,}" if x[1] else "–"),
        Column("idle under it", lambda x: duration(x[0].idle_ns) if x[1] else "–"),
    ),
    section="kernels",
    topic="ranges",
    spare=("idle under it",),
    file=file_of("ranges"),
)

KERNELS = TableOf[KernelTime](
    caption=lambda s: f"The {len(s.kernels[:TOP])} {_works(s)} that take most time",
    rows=lambda s: s.kernels[:TOP],
    columns=(
        Column(_work, lambda k: k.name, short, page=70),
        Column("kind", lambda k: " ".join(filter(None, (k.kind, k.precision)))),
        Column("time", lambda k: duration(k.duration_ns)),
        Column("share", lambda k: percent(k.share)),
        Column("count", lambda k: f"{k.count:,}"),
        Column("mean", lambda k: duration(k.mean_ns)),
        Column("shortest", lambda k: duration(k.min_ns)),
        Column("longest", lambda k: duration(k.max_ns)),
    ),
    left=2,
    section="kernels",
    page_order=-1,
    topic="kernels",
    spare=("longest", "shortest", "mean"),
    file=file_of("kernels"),
)

UNCLASSIFIED = TableOf[KernelTime](
    caption="Not recognised (kind `other`); configs/kernels.yaml holds the rules",
    rows=lambda s: s.unclassified[:_UNKNOWN],
    columns=(
        Column(_work, lambda k: k.name, short, page=80),
        Column("time", lambda k: duration(k.duration_ns)),
        Column("count", lambda k: f"{k.count:,}"),
    ),
    section="kernels",
    file=file_of("unclassified"),
)


def _counters(s: Summary) -> list[tuple[MetricAverage, Device]]:
    """The tensor cores' first."""
    found = [(m, d) for d in s.devices for m in d.metric_averages]
    found.sort(key=lambda x: (_TENSOR not in x[0].metric.lower(), x[0].metric, x[1].device))
    return found[:_COUNTERS]


COUNTERS = TableOf[tuple[MetricAverage, Device]](
    caption="GPU counters, mean over the window",
    rows=_counters,
    columns=(
        Column("counter", lambda x: x[0].metric),
        Column("device", lambda x: str(x[1].device)),
        Column("mean", lambda x: f"{x[0].mean:.1f}"),
        Column("samples", lambda x: f"{x[0].samples:,}"),
    ),
    section="kernels",
    topic="counters",
    file=file_per_device("metric_averages"),
)
