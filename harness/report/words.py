"""Words that terminal, page and timeline must share: causes of idle time, what a device runs, how good a recording
is. Knows no numbers."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Device, Summary

_ON_CPU = {
    "launch-bound": "between operators"
}  # nothing is launched there: it is Python from one to the next


def cause_word(cause: str, cpu: bool) -> str:
    """What a cause of idle time is called where it is shown.

    >>> cause_word("launch-bound", cpu=True), cause_word("launch-bound", cpu=False)
    ('between operators', 'launch-bound')
    """
    return _ON_CPU.get(cause, cause) if cpu else cause


def is_cpu(device: Device) -> bool:
    """Whether operators stand in for kernels there."""
    return device.device_kind == "cpu"


def are_cpus(devices: Sequence[Device]) -> bool:
    """Whether operators stand in for kernels on all of them (a job has one kind of device)."""
    return bool(devices) and all(map(is_cpu, devices))


def work_word(devices: Sequence[Device]) -> str:
    """What a device runs: kernels, or operators where it is a CPU."""
    return "operators" if are_cpus(devices) else "kernels"


def recording(s: Summary) -> str:
    """How far the recording can be believed; a run that was not asked for one has none to judge."""
    if s.sources or s.quality.findings:
        return s.quality.verdict.value
    return "none was asked for" if (s.run or {}).get("expects") == [] else "none"
