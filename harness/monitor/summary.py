"""A node's samples as a few numbers, those of `summary.json`: peak memory, utilisation, energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.monitor.samples import Recording, Series

SUMMARY_FILE = "summary.json"
SUMMARY_SCHEMA = 1


@dataclass(frozen=True)
class DeviceSummary:
    """One device over the whole recording; None: not known."""

    device: int
    name: str
    samples: int
    peak_memory_bytes: int | None
    memory_total_bytes: int | None
    mean_utilization_percent: float | None
    max_utilization_percent: float | None
    mean_power_watts: float | None
    max_power_watts: float | None
    energy_joules: float | None
    energy_from: str | None  # counter | power


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
    damaged_rows: int
    energy_joules: float | None
    devices: tuple[DeviceSummary, ...]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def integrate(points: Sequence[tuple[int, float]]) -> float:
    """Joules below (unix_ns, watts) points, by the trapezoid rule."""
    pairs = pairwise(points)
    return sum((first + last) / 2 * (end_ns - start_ns) / 1e9 for (start_ns, first), (end_ns, last) in pairs)


def counter(device: Series) -> list[tuple[int, float]]:
    """(unix_ns, joules) of the device's energy counter; empty if there is no counter, or it ran backwards
    (the driver was loaded again)."""
    points = device.points("energy_joules")
    runs_on = all(before <= after for (_, before), (_, after) in pairwise(points))
    return points if len(points) > 1 and runs_on else []


def measure_energy(device: Series) -> tuple[float | None, str | None]:
    """Joules between the first and the last sample, and their source: the device's counter, else integrated power."""
    if counted := counter(device):
        return counted[-1][1] - counted[0][1], "counter"
    power = device.points("power_watts")
    return (integrate(power), "power") if len(power) > 1 else (None, None)


def _summarize_device(device: Series) -> DeviceSummary:
    memory = [value for _, value in device.points("memory_used_bytes")]
    utilization = [value for _, value in device.points("utilization_percent")]
    power = [value for _, value in device.points("power_watts")]
    energy_joules, energy_from = measure_energy(device)
    return DeviceSummary(
        device=device.index,
        name=device.name,
        samples=len(device.unix_ns),
        peak_memory_bytes=int(max(memory)) if memory else None,
        memory_total_bytes=device.memory_total_bytes,
        mean_utilization_percent=_mean(utilization),
        max_utilization_percent=max(utilization, default=None),
        mean_power_watts=_mean(power),
        max_power_watts=max(power, default=None),
        energy_joules=energy_joules,
        energy_from=energy_from,
    )


def summarize(recording: Recording) -> NodeSummary:
    """The numbers of one node, from its first to its last sample."""
    devices = tuple(map(_summarize_device, recording.devices))
    first_ns, last_ns = recording.span_ns
    joules = [device.energy_joules for device in devices if device.energy_joules is not None]
    return NodeSummary(
        schema=SUMMARY_SCHEMA,
        host=recording.host,
        source=recording.source,
        power=recording.meta.get("power"),
        period_ns=recording.period_ns,
        duration_ns=last_ns - first_ns,
        samples=max((device.samples for device in devices), default=0),
        damaged_rows=recording.damaged_rows,
        energy_joules=sum(joules) if joules else None,
        devices=devices,
    )
