"""The parts of a device's window, which add up to it, each with its colour. Knows no plot."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.analysis.device_time import unknown_ns
from harness.analysis.labels import cause_word
from harness.analysis.process.host_calls import HostCause
from harness.analysis.summary import Device
from harness.common.display.palette import COMMUNICATION, COMPUTE, IDLE, MEMORY, UNKNOWN

OVERLAPPED = "compute and communication"
NOT_KNOWN = "not known"


class WindowPart(NamedTuple):
    """The part's colour and its length in a device's window. A withheld number counts as zero, and in `not known`."""

    color: str
    ns: Callable[[Device], int]


def _overlapped(d: Device) -> int:
    return d.overlapped_communication_ns or 0


def _unexplained(d: Device) -> int:
    return d.idle_ns - sum(c.duration_ns for c in d.idle_causes) if d.idle_ns else 0


def _idle(cause: str) -> Callable[[Device], int]:
    return lambda d: sum(c.duration_ns for c in d.idle_causes if c.cause == cause)


PARTS: dict[str, WindowPart] = {
    "compute": WindowPart(COMPUTE, lambda d: d.compute_ns - _overlapped(d)),
    OVERLAPPED: WindowPart(COMPUTE, _overlapped),
    "exposed communication": WindowPart(COMMUNICATION, lambda d: d.exposed_communication_ns or 0),
    "copies alone": WindowPart(MEMORY, lambda d: d.exposed_memory_ns),
    **{f"idle: {cause.label}": WindowPart(cause.color, _idle(cause.label)) for cause in HostCause},
    "idle, cause unknown": WindowPart(IDLE, _unexplained),
    NOT_KNOWN: WindowPart(UNKNOWN, unknown_ns),
}


def part_label(name: str, cpu: bool) -> str:
    cause = name.removeprefix("idle: ")
    return f"idle: {cause_word(cause, cpu)}" if cause != name else name
