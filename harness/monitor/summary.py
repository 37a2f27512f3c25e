"""A node's samples as a few numbers, those of `summary.json`: peak memory, utilisation, energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from harness.common.run_folder.run_files import MONITOR_SUMMARY
from harness.monitor.samples import DeviceSeries, NodeSamples
from harness.monitor.source import Points, pieces

SUMMARY_FILE = MONITOR_SUMMARY.base  # in a node's folder
SUMMARY_SCHEMA = 1
# NVML's bits for a clock that is lowered against the program's will; idle devices and chosen clocks have others.
CLOCK_LIMITS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
_BUSY_PERCENT = 90


@dataclass(frozen=True)
class DeviceSummary:
    """One device over the whole recording; None: not known."""

    device: int
    name: str
    samples: int
    peak_memory_bytes: int | None
    memory_total_bytes: int | None
    mean_utilization_percent: float | None
    mean_sm_active_percent: float | None
    mean_tensor_active_percent: float | None
    mean_dram_active_percent: float | None
    mean_power_watts: float | None
    max_power_watts: float | None
    energy_joules: float | None
    energy_from: str | None  # counter | power
    energy_lacks_ns: int  # of the recording: its gaps, but for those over which a counter ran on
    clock_limits: dict[str, float]  # reason → share of the samples in which it held, if in any


@dataclass(frozen=True)
class NodeSummary:
    """One node. `energy_joules` is the sum over devices, None if no device has it."""

    schema: int
    host: str
    source: str
    power: str | None  # the part of the machine whose power it is
    period_ns: int
    duration_ns: int
    samples: int
    gaps_ns: int  # without samples between the first and the last
    damaged_rows: int
    energy_joules: float | None
    notes: tuple[str, ...]  # what is not as the job sees its GPUs, and what their numbers do not mean
    devices: tuple[DeviceSummary, ...]


def integrate(points: Sequence[tuple[int, float]]) -> float:
    """Joules below (unix_ns, watts) points, by the trapezoid rule."""
    pairs = pairwise(points)
    return sum((first + last) / 2 * (end_ns - start_ns) / 1e9 for (start_ns, first), (end_ns, last) in pairs)


def counted(device: DeviceSeries) -> list[Points]:
    """(unix_ns, joules) of the device's energy counter, in pieces: it may have begun again in a gap. Empty if there is
    no counter, or it ran backwards elsewhere (the driver was loaded again)."""
    found: list[Points] = []
    for piece in pieces(device.points("energy_joules"), device.gaps):
        if any(before > after for (_, before), (_, after) in pairwise(piece)):
            return []
        if found and found[-1][-1][1] <= piece[0][1]:
            found[-1] = found[-1] + piece
        else:
            found.append(piece)
    return found if any(len(piece) > 1 for piece in found) else []


def measure_energy(device: DeviceSeries) -> tuple[float | None, str | None, int]:
    """Joules from the first to the last sample, where they come from (`counter`, else integrated `power`; nothing for a
    gap), and the nanoseconds that they leave out."""
    if metered := counted(device):
        return sum(piece[-1][1] - piece[0][1] for piece in metered), "counter", _between(metered)
    power = pieces(device.points("power_watts"), device.gaps)
    if sum(map(len, power)) < 2:
        return None, None, 0
    return sum(map(integrate, power)), "power", _between(power)


def _between(points: Sequence[Points]) -> int:
    return sum(after[0][0] - before[-1][0] for before, after in pairwise(points))


def clock_limits(device: DeviceSeries) -> dict[str, float]:
    """Why the device's clock was lowered, and the share of the samples in which it was; the most frequent first."""
    bits = [int(value) for _, value in device.points("clock_limits")]
    shares = {name: sum(bool(each & bit) for each in bits) / len(bits) for bit, name in CLOCK_LIMITS.items() if bits}
    return dict(sorted(((name, share) for name, share in shares.items() if share), key=lambda one: -one[1]))


def without_sms(utilization: float | None, sm_active: float | None) -> str | None:
    """A sentence if a device that counts as busy, both means in per cent, used less than half of that on its SMs."""
    if utilization is None or sm_active is None or utilization < _BUSY_PERCENT or 2 * sm_active >= utilization:
        return None
    return (
        f"utilisation is {utilization:.0f} %, but it counts any work of the device, copies too; an SM had work in "
        f"{sm_active:.1f} % of the time"
    )


def _mean(device: DeviceSeries, column: str) -> float | None:
    values = [value for _, value in device.points(column)]
    return fmean(values) if values else None


def _summarize_device(device: DeviceSeries) -> DeviceSummary:
    memory = [value for _, value in device.points("memory_used_bytes")]
    power = [value for _, value in device.points("power_watts")]
    joules, source, lacks_ns = measure_energy(device)
    return DeviceSummary(
        device=device.index,
        name=device.name,
        samples=len(device.unix_ns),
        peak_memory_bytes=int(max(memory)) if memory else None,
        memory_total_bytes=device.memory_total_bytes,
        mean_utilization_percent=_mean(device, "utilization_percent"),
        mean_sm_active_percent=_mean(device, "sm_active_percent"),
        mean_tensor_active_percent=_mean(device, "tensor_active_percent"),
        mean_dram_active_percent=_mean(device, "dram_active_percent"),
        mean_power_watts=_mean(device, "power_watts"),
        max_power_watts=max(power, default=None),
        energy_joules=joules,
        energy_from=source,
        energy_lacks_ns=lacks_ns,
        clock_limits=clock_limits(device),
    )


def summarize(recording: NodeSamples) -> NodeSummary:
    """The numbers of one node, from its first to its last sample."""
    devices = tuple(map(_summarize_device, recording.devices))
    first_ns, last_ns = recording.span_ns
    joules = [device.energy_joules for device in devices if device.energy_joules is not None]
    said = ((each.device, without_sms(each.mean_utilization_percent, each.mean_sm_active_percent)) for each in devices)
    return NodeSummary(
        schema=SUMMARY_SCHEMA,
        host=recording.host,
        source=recording.source,
        power=recording.meta.get("power"),
        period_ns=recording.period_ns,
        duration_ns=last_ns - first_ns,
        samples=max((device.samples for device in devices), default=0),
        gaps_ns=sum(end_ns - start_ns for start_ns, end_ns in recording.gaps),
        damaged_rows=recording.damaged_rows,
        energy_joules=sum(joules) if joules else None,
        notes=(*recording.notes, *(f"GPU {device}: {text}" for device, text in said if text)),
        devices=devices,
    )
