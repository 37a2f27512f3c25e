"""Shares of the devices' time. A number that was withheld is not zero and is not counted as zero. Knows no words."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device


def with_known(devices: Sequence[Device], field: str) -> list[Device]:
    """The devices whose `field` was not withheld."""
    return [d for d in devices if getattr(d, field) is not None]


def share(devices: Sequence[Device], field: str) -> float | None:
    """The field's share of the window, over the devices that know the field; None: no device knows it."""
    measured = with_known(devices, field)
    window = sum(d.window_ns for d in measured)
    return sum(getattr(d, field) for d in measured) / window if window else None


def unknown_ns(device: Device) -> int:
    """The part of the window that the other numbers leave open when one of them was withheld; else 0."""
    optional = (device.exposed_communication_ns, device.idle_ns)
    if None not in optional:
        return 0
    explained = device.compute_ns + device.exposed_memory_ns + sum(ns or 0 for ns in optional)
    return max(device.window_ns - explained, 0)


def by_idleness(devices: Sequence[Device]) -> list[Device]:
    """The busiest first, the idlest last; devices without a known idle time in the middle."""
    measured = with_known(devices, "idle_ns")
    measured.sort(key=lambda d: (d.idle_ns or 0) / max(d.window_ns, 1))
    half = len(measured) // 2
    return [*measured[:half], *(d for d in devices if d.idle_ns is None), *measured[half:]]


def busiest_and_idlest(devices: Sequence[Device], most: int, most_shown: int) -> Sequence[Device]:
    """All devices; of more than `most` devices only `most_shown`: half of them the busiest, half the idlest."""
    if len(devices) <= most:
        return devices
    ordered, half = by_idleness(devices), most_shown // 2
    return [*ordered[:half], *ordered[-half:]]
