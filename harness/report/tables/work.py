"""The tables about work: ranges, kernels."""

from __future__ import annotations

from harness.analysis.summary import KernelTime, RangeTime, Summary
from harness.format.format import apart, duration, percent, short
from harness.format.labels import work_word
from harness.report.tables.table import Column, TableOf, file_of

TOP = 12  # shown rows of long tables
_UNKNOWN = 8


def _works(s: Summary) -> str:
    return work_word(s.devices)


def _work(s: Summary) -> str:
    return work_word(s.devices).removesuffix("s")


_Range = tuple[RangeTime, bool]  # and whether the job has a device: without a device no work is shown


def _ranges(s: Summary) -> list[_Range]:
    """The program's own ranges, without the operators of PyTorch."""
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
        Column("idle inside it", lambda x: duration(x[0].idle_ns) if x[1] else "–"),
    ),
    section="kernels",
    topic="ranges",
    spare=("idle inside it",),
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
