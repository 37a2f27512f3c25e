"""The tables of the monitor: devices and ports of the nodes."""

from __future__ import annotations

from typing import Any

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.display.format import amount, percent
from harness.monitor.summary import without_sms
from harness.report.tables.table import Column, TableOf, file_of

_NAMED_DEVICES = 4  # devices in one sentence


def _clock_limits(m: summary.MonitorDevice) -> str:
    return ", ".join(f"{reason} {percent(share)}" for reason, share in m.clock_limit_shares.items()) or "–"


def monitor_sentences(s: Summary) -> list[str]:
    """Where the utilisation promises more than the SMs did. Alike devices are told once."""
    said: dict[str, list[str]] = {}
    for m in s.monitor:
        if text := without_sms(m.mean_utilization_percent, m.mean_sm_active_percent):
            said.setdefault(text, []).append(f"{m.node} GPU {m.device}")
    return [
        f"{', '.join(which[:_NAMED_DEVICES])}{' …' * (len(which) > _NAMED_DEVICES)}: {text}"
        for text, which in said.items()
    ]


MONITOR = TableOf[summary.MonitorDevice](
    caption="Samples of the monitor, over the whole job",
    rows=lambda s: s.monitor,
    columns=(
        Column("node", "node"),
        Column("device", "device"),
        Column("name", "name"),
        Column("utilisation", lambda m: _or_dash(m.mean_utilization_percent, "{:.1f} %")),
        Column("SM Active", lambda m: _or_dash(m.mean_sm_active_percent, "{:.1f} %")),
        Column("Tensor Active", lambda m: _or_dash(m.mean_tensor_active_percent, "{:.1f} %")),
        Column("DRAM", lambda m: _or_dash(m.mean_dram_active_percent, "{:.1f} %")),
        Column("peak memory", "peak_memory_bytes"),
        Column("of", "memory_total_bytes"),
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
    return ", ".join(n.ports[:4]) + (f" and {len(n.ports) - 4} more" if len(n.ports) > 4 else "")


def _traffic(gb_per_s: float | None) -> str:
    return amount(None if gb_per_s is None else gb_per_s * 1e9, "B/s")


NETWORK = TableOf[summary.NodeNetwork](
    caption="Network of each node: all its ports together, not the job's traffic alone",
    rows=lambda s: sorted(s.network, key=lambda n: -n.peak_gb_per_s),
    columns=(
        Column("node", "node"),
        Column("switch", "switch"),
        Column("ports", _ports),
        Column("sampled by", "sampled_by"),
        Column("over", "duration_ns"),
        Column("mean sent", lambda n: _traffic(n.mean_sent_gb_per_s)),
        Column("mean received", lambda n: _traffic(n.mean_received_gb_per_s)),
        Column("peak", lambda n: _traffic(n.peak_gb_per_s)),
        Column("link", lambda n: _traffic(n.link_gb_per_s)),
        Column("peak of link", "peak_share"),
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


TABLES: tuple[TableOf[Any], ...] = (MONITOR, NETWORK)
