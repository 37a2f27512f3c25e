"""The tables about the work of devices: kernels, launches, copies and hardware counters."""

from __future__ import annotations

from harness.analysis import summary
from harness.analysis.labels import work_word
from harness.analysis.summary import Summary
from harness.common.display.format import duration, of, percent, rate, short
from harness.report.tables.table import Column, TableOf, file_of, file_per_device

TOP = 12  # shown rows of long tables
_UNCLASSIFIED = 8  # shown kernels that no rule recognises
_Kernel = tuple[summary.KernelTime, bool]  # and whether the job communicates: else nothing can overlap
_MANY_RANKS = 16  # more than these are not all listed in a terminal
_COUNTERS = 40
_TENSOR = "tensor"
LAUNCHES = TableOf[summary.Launches](
    caption="Launches; delay: from the launching call to the kernel's start",
    rows=lambda s: s.launches,
    columns=(
        Column("rank", "rank"),
        Column("kernels", "kernels"),
        Column("per step", lambda x: f"{x.kernels_per_step:,.0f}" if x.kernels_per_step else "–"),
        Column("median kernel", "median_kernel_ns"),
        Column("under 10 µs", "short_kernel_fraction"),
        Column("median delay", "median_delay_ns"),
        Column("p90 delay", "p90_delay_ns"),
    ),
    section="host",
    most=_MANY_RANKS,
    rest="ranks",
    file=file_of("launches"),
)


def works(s: Summary) -> str:
    return work_word(s.devices)


def _work(s: Summary) -> str:
    return work_word(s.devices).removesuffix("s")


def _kernels(s: Summary) -> list[_Kernel]:
    communicates = any(d.communication_ns for d in s.devices)
    return [(k, communicates) for k in s.kernels[:TOP]]


def _kernels_caption(s: Summary) -> str:
    words = f"The {len(s.kernels[:TOP])} {works(s)} that take most time"
    if not any(communicates for _, communicates in _kernels(s)):
        return words
    return f"{words}; exposed: without compute beside it; overlapped: of its time, communication beside compute"


KERNELS = TableOf[_Kernel](
    caption=_kernels_caption,
    rows=_kernels,
    columns=(
        Column(_work, lambda x: x[0].name, short, page=70),
        Column("kind", lambda x: " ".join(filter(None, (x[0].kind, x[0].precision)))),
        Column("time", lambda x: duration(x[0].duration_ns)),
        Column("share", lambda x: percent(x[0].share)),
        Column("exposed", lambda x: "–" if x[0].exposed_ns is None else duration(x[0].exposed_ns)),
        Column("overlapped", lambda x: of(x[0].overlapped_ns, x[0].duration_ns) if x[1] else "–"),
        Column("count", lambda x: f"{x[0].count:,}"),
        Column("mean", lambda x: duration(x[0].mean_ns)),
        Column("shortest", lambda x: duration(x[0].min_ns)),
        Column("longest", lambda x: duration(x[0].max_ns)),
    ),
    left=2,
    section="kernels",
    page_order=-1,
    spare=("longest", "shortest", "mean"),
    file=file_of("kernels"),
)
UNCLASSIFIED = TableOf[summary.KernelTime](
    caption="Not recognised (kind `other`); configs/kernels.yaml holds the rules",
    rows=lambda s: s.unclassified[:_UNCLASSIFIED],
    columns=(Column(_work, "name", short, page=80), Column("time", "duration_ns"), Column("count", "count")),
    section="kernels",
    file=file_of("unclassified"),
)


def _link(c: summary.Copy) -> str:
    """The link's nominal bandwidth, and the share of it that was reached."""
    if c.link_gb_per_s is None or c.bandwidth_gb_per_s is None:
        return "–"
    return f"{rate(c.link_gb_per_s)} ({percent(c.bandwidth_gb_per_s / c.link_gb_per_s)})"


COPIES = TableOf[summary.Copy](
    caption="Memory copies and sets; exposed: while the device neither computes nor communicates",
    rows=lambda s: s.copies,
    columns=(
        Column("direction", "direction"),
        Column("memory", "memory"),
        Column("count", "count"),
        Column("bytes", "bytes"),
        Column("time", "duration_ns"),
        Column("GB/s", "bandwidth_gb_per_s"),
        Column("of the link's", _link),
        Column("exposed", "exposed_ns"),
        Column("under 64 KiB", "small_count"),
        Column("largest", "largest_bytes"),
    ),
    section="host",
    spare=("largest", "under 64 KiB"),
    left=2,
    file=file_of("copies"),
)


def _counters(s: Summary) -> list[tuple[summary.MetricAverage, summary.Device]]:
    """The tensor cores' first."""
    found = [(m, d) for d in s.devices for m in d.metric_averages]
    found.sort(key=lambda x: (_TENSOR not in x[0].metric.lower(), x[0].metric, x[1].device))
    return found[:_COUNTERS]


COUNTERS = TableOf[tuple[summary.MetricAverage, summary.Device]](
    caption="GPU counters, mean over the window",
    rows=_counters,
    columns=(
        Column("counter", lambda x: x[0].metric),
        Column("device", lambda x: str(x[1].device)),
        Column("mean", lambda x: f"{x[0].mean:.1f}"),
        Column("samples", lambda x: f"{x[0].samples:,}"),
    ),
    section="counters",
    advice=lambda s: (
        ["Over time, one picture for each counter: on the page."] if any(d.counters for d in s.devices) else []
    ),
    file=file_per_device("metric_averages"),
)
