"""The page's section about kernels: kinds with their precision, the longest kernels, what communication hides
behind."""

from __future__ import annotations

from harness.analysis.summary import KindTime, Summary
from harness.report import plots
from harness.report.numbers import duration, middle, of, percent, short
from harness.report.page_inputs import Inputs
from harness.report.page_parts import Figure, Section, Table, table
from harness.report.plots_palette import of_kind

_TOP = 15
_TENSOR = "tensor"


def work_section(s: Summary, inputs: Inputs) -> Section:
    """Which work fills the devices' time."""
    if not s.kinds:
        return Section("kernels", "Kernels", note="No kernel was recorded.")
    unit = "operators" if any(d.device_kind == "cpu" for d in s.devices) else "kernels"
    lead = f"Time of all {unit} on all devices, added up: what overlaps counts twice. {_products(s)}"
    tables = [*_phases(s), *_overlap(inputs), *_top(s), *_ranges(s), *_unknown(s), *_counters(s)]
    return Section("kernels", "Kernels by kind", lead.strip(), [_kinds(s)], tables)


def _label(k: KindTime) -> str:
    return f"{k.kind} {k.precision}" if k.precision else k.kind


def _kinds(s: Summary) -> Figure:
    kinds = [k for k in s.kinds if k.share >= 0.0005]
    data = [
        plots.across(
            "time",
            [k.duration_ns / 1e6 for k in kinds],
            [_label(k) for k in kinds],
            "",
            marker={"color": [of_kind(k.kind) for k in kinds]},
            text=[percent(k.share) for k in kinds],
            textposition="outside",
            cliponaxis=False,
        )
    ]
    y = {"autorange": "reversed", "automargin": True, "type": "category"}
    axes = plots.layout("time on all devices (ms)", y, showlegend=False)
    words = "Time by kind of work: " + ", ".join(f"{_label(k)} {percent(k.share)}" for k in kinds[:5]) + "."
    rows = [[_label(k), duration(k.duration_ns), percent(k.share), f"{k.count:,}"] for k in s.kinds]
    numbers = Table("Kinds of work, all devices", ("kind", "time", "share", "count"), rows)
    return Figure("kinds", words, data, axes, plots.bars_height(len(kinds)), numbers)


def _products(s: Summary) -> str:
    """The share of matrix products, and of them the share by precision."""
    total = sum(k.duration_ns for k in s.kinds if k.kind != "communication")
    products = [k for k in s.kinds if k.kind == "gemm"]
    if not products or not total:
        return ""
    whole = sum(k.duration_ns for k in products)
    by = ", ".join(
        f"{of(k.duration_ns, whole)} in {k.precision or 'a precision that was not recorded'}"
        for k in products
    )
    return f"Matrix products (GEMM) are {of(whole, total)} of the time without communication; of it {by}."


def _phases(s: Summary) -> list[Table]:
    if all(p.phase == "other" for p in s.phases):
        return []
    rows = [
        [p.phase, duration(p.duration_ns), percent(p.share), duration(p.compute_ns), duration(p.communication_ns),
         f"{p.kernels:,}"]
        for p in s.phases
    ]  # fmt: skip
    head = ("phase", "time", "share", "compute", "communication", "count")
    return table("Phases of training, on the devices", head, rows)


def _overlap(inputs: Inputs) -> list[Table]:
    rows = [
        [kind, duration(total), duration(beside), of(beside, total)] for kind, total, beside in inputs.hidden
    ]
    head = ("kind", "time", "beside communication", "share")
    return table("What runs while communication runs: the work that hides it", head, rows)


def _top(s: Summary) -> list[Table]:
    rows = [
        [
            short(k.name, 70),
            " ".join(filter(None, (k.kind, k.precision))),
            duration(k.duration_ns),
            percent(k.share),
            f"{k.count:,}",
            duration(k.mean_ns),
            duration(k.min_ns),
            duration(k.max_ns),
        ]
        for k in s.kernels[:_TOP]
    ]
    head = ("kernel", "kind", "time", "share", "count", "mean", "shortest", "longest")
    return table(f"The {len(rows)} kernels that take most time", head, rows, left=2)


def _ranges(s: Summary) -> list[Table]:
    rows = [
        [
            middle(r.name, 60),
            f"{r.instances:,}",
            duration(r.host_ns / r.instances),
            duration(r.kernel_ns / r.instances),
            f"{r.kernels:,}",
            duration(r.idle_ns),
        ]
        for r in s.ranges
        if r.instances and not r.name.startswith("aten::")
    ][:_TOP]
    head = ("range", "instances", "host each", "kernels each", "kernels", "idle under it")
    return table("The program's own ranges, on the host and on the devices", head, rows)


def _unknown(s: Summary) -> list[Table]:
    rows = [[short(k.name, 80), duration(k.duration_ns), f"{k.count:,}"] for k in s.unclassified[:8]]
    return table(
        "Not recognised (kind `other`); configs/kernels.yaml holds the rules",
        ("kernel", "time", "count"),
        rows,
    )


def _counters(s: Summary) -> list[Table]:
    """Sampled hardware counters; the tensor cores' first."""
    found = [(m, d) for d in s.devices for m in d.metric_averages]
    found.sort(key=lambda x: (_TENSOR not in x[0].metric.lower(), x[0].metric, x[1].device))
    rows = [[m.metric, str(d.device), f"{m.mean:.1f}", f"{m.samples:,}"] for m, d in found[:40]]
    return table("GPU counters, mean over the window", ("counter", "device", "mean", "samples"), rows)
