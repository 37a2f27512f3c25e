"""The tables about the host, the counters, the training and the machine."""

from __future__ import annotations

from typing import Any

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.format import amount, duration, percent, rate
from harness.explain.copies import CopiedJob, copy_causes
from harness.monitor.summary import without_sms
from harness.report.tables.table import Column, TableOf, file_of, file_per_device

_MANY_RANKS = 16  # more than these are not all listed in a terminal
_COUNTERS = 40
_NAMED = 4  # devices in one sentence
_TENSOR = "tensor"
_UNKNOWN = "not given: the peak of this device is not known"

LAUNCHES = TableOf[summary.Launches](
    caption="Launches; delay: from the launching call to the kernel's start",
    rows=lambda s: s.launches,
    columns=(
        Column("rank", lambda x: "–" if x.rank is None else str(x.rank)),
        Column("kernels", lambda x: f"{x.kernels:,}"),
        Column("per step", lambda x: f"{x.kernels_per_step:,.0f}" if x.kernels_per_step else "–"),
        Column("median kernel", lambda x: duration(x.median_kernel_ns)),
        Column("under 10 µs", lambda x: percent(x.short_kernel_fraction)),
        Column("median delay", lambda x: duration(x.median_delay_ns)),
        Column("p90 delay", lambda x: duration(x.p90_delay_ns)),
    ),
    section="host",
    most=_MANY_RANKS,
    rest="ranks",
    file=file_of("launches"),
)


NOTICEABLE = 0.03  # of the devices' time alone with copies of one class, from which the table has advice


def _copies_advice(s: Summary) -> list[str]:
    """What helps against each class of copies that takes noticeable time of the devices alone."""
    job = CopiedJob(s.devices, s.steps.counted)
    return [
        f"  ! {cause.what}; {duration(cause.exposed_ns)} without compute: {cause.advice}"
        for cause in copy_causes(s.copies, job)
        if cause.exposed_ns > NOTICEABLE * job.window_ns
    ]


def _link(c: summary.Copy) -> str:
    """The link's nominal bandwidth, and the share of it that was reached."""
    if c.link_gb_per_s is None or c.bandwidth_gb_per_s is None:
        return "–"
    return f"{rate(c.link_gb_per_s)} ({percent(c.bandwidth_gb_per_s / c.link_gb_per_s)})"


COPIES = TableOf[summary.Copy](
    caption="Memory copies and sets; exposed: while the device neither computes nor communicates",
    rows=lambda s: s.copies,
    columns=(
        Column("direction", lambda c: c.direction),
        Column("memory", lambda c: c.memory or "–"),
        Column("count", lambda c: f"{c.count:,}"),
        Column("bytes", lambda c: amount(c.bytes)),
        Column("time", lambda c: duration(c.duration_ns)),
        Column("GB/s", lambda c: rate(c.bandwidth_gb_per_s)),
        Column("of the link's", _link),
        Column("exposed", lambda c: duration(c.exposed_ns)),
        Column("under 64 KiB", lambda c: f"{c.small_count:,}"),
        Column("largest", lambda c: amount(c.largest_bytes)),
    ),
    section="host",
    spare=("largest", "under 64 KiB"),
    left=2,
    advice=_copies_advice,
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


def _own_clock(s: Summary) -> str:
    phase = next((t.phase_counted for t in s.training), None)
    return f"Training's own clock, medians of {phase or 'all'} steps"


TRAINING = TableOf[summary.RankTraining](
    caption=_own_clock,
    rows=lambda s: s.training,
    columns=(
        Column("rank", lambda t: str(t.rank)),
        Column("steps", lambda t: f"{t.steps_counted}/{t.steps_total}"),
        Column("step", lambda t: duration(t.median_step_ns)),
        Column("data", lambda t: duration(t.median_data_ns)),
        Column("forward", lambda t: duration(t.median_forward_ns)),
        Column("backward", lambda t: duration(t.median_backward_ns)),
        Column("optimizer", lambda t: duration(t.median_optimizer_ns)),
        Column("speed", lambda t: amount(t.tokens_per_s, "tokens/s")),
        Column("loss", lambda t: "–" if t.last_loss is None else f"{t.last_loss:.4f}"),
        Column("peak memory", lambda t: amount(t.peak_memory_bytes)),
        Column("recording adds", lambda t: amount(t.profiler_memory_bytes or None)),
        Column("status", lambda t: t.status or "–"),
    ),
    section="steps",
    spare=("steps", "loss", "status", "recording adds", "peak memory"),
    most=_MANY_RANKS,
    rest="ranks",
    file=file_of("training"),
)


def _speed(s: Summary) -> list[tuple[str, str]]:
    """The throughput and its share of the machine's peak, or why the share is not given."""
    e = s.efficiency
    if e is None or e.tokens_per_s is None:
        return []
    peak = f"{percent(e.mfu)} of {amount(e.peak_flops_per_s, 'FLOP/s')} ({e.peak_source})"
    without_hfu = "as MFU: nothing is recomputed" if e.mfu is not None else _UNKNOWN
    together = f"{amount(e.tokens_per_s, 'tokens/s')}, {amount(e.samples_per_s, 'samples/s')}"
    return [
        ("all ranks together", together),
        ("model FLOP/s of each device", amount(e.model_flops_per_s_per_device, "FLOP/s")),
        ("MFU", peak if e.mfu else _UNKNOWN),
        ("HFU", percent(e.hfu) if e.hfu is not None else without_hfu),
    ]


SPEED = TableOf[tuple[str, str]](
    caption="Speed of the job",
    rows=_speed,
    columns=(Column("", lambda x: x[0]), Column("", lambda x: x[1])),
    left=2,
    section="steps",
)


def _clock_limits(m: summary.MonitorDevice) -> str:
    return ", ".join(f"{reason} {percent(share)}" for reason, share in m.clock_limit_shares.items()) or "–"


def monitor_sentences(s: Summary) -> list[str]:
    """Where the utilisation promises more than the SMs did. Alike devices are told once."""
    said: dict[str, list[str]] = {}
    for m in s.monitor:
        if text := without_sms(m.mean_utilization_percent, m.mean_sm_active_percent):
            said.setdefault(text, []).append(f"{m.node} GPU {m.device}")
    return [f"{', '.join(which[:_NAMED])}{' …' * (len(which) > _NAMED)}: {text}" for text, which in said.items()]


MONITOR = TableOf[summary.MonitorDevice](
    caption="Samples of the monitor, over the whole job",
    rows=lambda s: s.monitor,
    columns=(
        Column("node", lambda m: m.node),
        Column("device", lambda m: str(m.device)),
        Column("name", lambda m: m.name),
        Column("utilisation", lambda m: _or_dash(m.mean_utilization_percent, "{:.1f} %")),
        Column("SM Active", lambda m: _or_dash(m.mean_sm_active_percent, "{:.1f} %")),
        Column("Tensor Active", lambda m: _or_dash(m.mean_tensor_active_percent, "{:.1f} %")),
        Column("DRAM", lambda m: _or_dash(m.mean_dram_active_percent, "{:.1f} %")),
        Column("peak memory", lambda m: amount(m.peak_memory_bytes)),
        Column("of", lambda m: amount(m.memory_total_bytes)),
        Column("mean power", lambda m: _or_dash(m.mean_power_watts, "{:.0f} W")),
        Column("energy", lambda m: amount(m.energy_joules, "J")),
        Column("clock lowered by", _clock_limits),
    ),
    left=3,
    section="machine",
    spare=("name", "of", "DRAM", "Tensor Active"),
    advice=lambda s: [f"  ! {sentence}" for sentence in monitor_sentences(s)],
    file=file_of("monitor"),
)


def _ports(n: summary.NodeNetwork) -> str:
    shown = ", ".join(n.ports[:4]) + (f" and {len(n.ports) - 4} more" if len(n.ports) > 4 else "")
    return f"{shown} (inside the node)" if n.loopback else shown


def _traffic(gb_per_s: float | None) -> str:
    return amount(None if gb_per_s is None else gb_per_s * 1e9, "B/s")


NETWORK = TableOf[summary.NodeNetwork](
    caption="Network of each node: all its ports together, not the job's traffic alone",
    rows=lambda s: sorted(s.network, key=lambda n: -n.peak_gb_per_s),
    columns=(
        Column("node", lambda n: n.node),
        Column("switch", lambda n: n.switch or "–"),
        Column("ports", _ports),
        Column("sampled by", lambda n: n.sampled_by),
        Column("over", lambda n: duration(n.duration_ns)),
        Column("mean sent", lambda n: _traffic(n.mean_sent_gb_per_s)),
        Column("mean received", lambda n: _traffic(n.mean_received_gb_per_s)),
        Column("peak", lambda n: _traffic(n.peak_gb_per_s)),
        Column("link", lambda n: _traffic(n.link_gb_per_s)),
        Column("peak of link", lambda n: percent(n.peak_share)),
    ),
    left=3,
    section="machine",
    spare=("ports",),
    most=8,
    rest="nodes",
    file=file_of("network"),
)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


TABLES: tuple[TableOf[Any], ...] = (LAUNCHES, COPIES, COUNTERS, TRAINING, SPEED, MONITOR, NETWORK)
