"""Tables about the host, the training and the machine, each declared once for the terminal and the page."""

from __future__ import annotations

from harness.analysis.summary import Efficiency, Summary
from harness.format.format import amount, duration, percent, rate
from harness.report.elements import Table


def launch_table(s: Summary) -> Table:
    """How the host feeds each rank's device."""
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
        for x in s.launches
    ]
    head = ("rank", "kernels", "per step", "median kernel", "under 10 µs", "median delay", "p90 delay")
    return Table("Launches; delay: from the launching call to the kernel's start", head, rows)


def copy_table(s: Summary) -> Table:
    """Copies and sets by direction."""
    rows = [
        [
            c.direction,
            f"{c.count:,}",
            amount(c.bytes),
            duration(c.duration_ns),
            rate(c.bandwidth_gb_per_s),
            f"{c.pageable_count:,}",
        ]
        for c in s.copies
    ]
    head = ("direction", "count", "bytes", "time", "GB/s", "pageable")
    return Table("Memory copies and sets", head, rows)


def training_table(s: Summary) -> Table:
    """Every rank by its own clock."""
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
        for t in s.training
    ]
    head = ("rank", "steps", "step", "data", "forward", "backward", "optimizer", "speed", "loss", "peak memory",
            "status")  # fmt: skip
    phase = (s.training[0].phase_counted if s.training else None) or "all"
    return Table(f"Training's own clock, medians of {phase} steps", head, rows)


def speed_table(s: Summary) -> Table:
    """Throughput and what it is of the machine's peak; what is not known says why."""
    e = s.efficiency
    if e is None or e.tokens_per_s is None:
        return Table("Speed of the job", ("", ""), [], left=2)
    speed = f"{amount(e.tokens_per_s, 'tokens/s')}, {amount(e.samples_per_s, 'samples/s')}"
    peak = f"{percent(e.mfu)} of {amount(e.peak_flops_per_s, 'FLOP/s')} ({e.peak_source})"
    rows = [
        ["all ranks together", speed],
        ["model FLOP/s of each device", amount(e.model_flops_per_s_per_device, "FLOP/s")],
        ["MFU", peak if e.mfu else _UNKNOWN],
        ["HFU", _hfu(e)],
    ]
    return Table("Speed of the job", ("", ""), rows, left=2)


_UNKNOWN = "not given: the peak of this device is not known"


def _hfu(e: Efficiency) -> str:
    if e.hfu is not None:
        return percent(e.hfu)
    return "as MFU: nothing is recomputed" if e.mfu is not None else _UNKNOWN


def monitor_table(s: Summary) -> Table:
    """What the monitor saw of each device."""
    rows = [
        [
            m.node,
            str(m.device),
            m.name,
            "–" if m.mean_utilization_percent is None else f"{m.mean_utilization_percent:.1f} %",
            amount(m.peak_memory_bytes),
            amount(m.memory_total_bytes),
            "–" if m.mean_power_watts is None else f"{m.mean_power_watts:.0f} W",
            amount(m.energy_joules, "J"),
        ]
        for m in s.monitor
    ]
    head = ("node", "device", "name", "utilisation", "peak memory", "of", "mean power", "energy")
    return Table("What the monitor saw, over the whole job", head, rows, left=3)
