"""What is known of devices' time: a number that was withheld is not zero, and must not be counted as zero. Knows
devices, no words."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device


def with_known(devices: Sequence[Device], field: str) -> list[Device]:
    """Those whose number of that name was not withheld."""
    return [d for d in devices if getattr(d, field) is not None]


def share(devices: Sequence[Device], field: str) -> float | None:
    """Of the window, over the devices that know the number; None where none does."""
    knowing = with_known(devices, field)
    window = sum(d.window_ns for d in knowing)
    return sum(getattr(d, field) for d in knowing) / window if window else None


def unknown_ns(device: Device) -> int:
    """What its known parts leave of the window where one of them was withheld."""
    parts = (device.exposed_communication_ns, device.idle_ns)
    if None not in parts:
        return 0
    known = device.compute_ns + device.exposed_memory_ns + sum(part or 0 for part in parts)
    return max(device.window_ns - known, 0)


def by_idleness(devices: Sequence[Device]) -> list[Device]:
    """The busiest first, the idlest last; those whose idle time is not known are neither, and stand between."""
    knowing = with_known(devices, "idle_ns")
    knowing.sort(key=lambda d: (d.idle_ns or 0) / max(d.window_ns, 1))
    half = len(knowing) // 2
    return [*knowing[:half], *(d for d in devices if d.idle_ns is None), *knowing[half:]]


def busiest_and_idlest(devices: Sequence[Device], most: int, shown: int) -> Sequence[Device]:
    """All devices; where they are more than `most`, half of `shown` the busiest and half the idlest."""
    if len(devices) <= most:
        return devices
    ordered, half = by_idleness(devices), shown // 2
    return [*ordered[:half], *ordered[-half:]]
