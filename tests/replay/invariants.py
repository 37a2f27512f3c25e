"""What no finding may claim: more than its devices' time allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.analysis.summary import Device, Summary, TimeLost, TimeSplit
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.diagnosis import BUSY

_ROUNDING_NS = 2.0


def broken(s: Summary) -> list[str]:
    """The findings that claim too much, in words."""
    return [said for found in s.findings if found.basis == "replay" for said in _broken(s, found)]


def _broken(s: Summary, found: TimeLost) -> Iterator[str]:
    assert s.replay is not None
    devices = [d for d in s.devices if d.rank in found.ranks]
    on_cpu = devices[0].device_kind == "cpu"
    entry = CAUSES[found.cause]
    if found.lost_ns > s.replay.step_ns + _ROUNDING_NS:
        yield f"{found.cause} loses more than the step"
    if entry.of_host and not (entry.on_gpus and on_cpu):
        idle = sum(_mean(d, "idle_ns", s.replay.steps) for d in devices)
        if found.lost_ns > idle + _ROUNDING_NS:
            yield f"{found.cause} loses {found.lost_ns} of {idle:.0f} ns without work"
        if all(
            _mean(d, "idle_ns", s.replay.steps) < (1 - BUSY) * _mean(d, "window_ns", s.replay.steps) for d in devices
        ):
            yield f"{found.cause} on devices that are busy"
    for cause, part in (("communication", "exposed_communication_ns"), ("copies", "exposed_memory_ns")):
        if found.cause == cause:
            most = float(np.mean([_mean(d, part, s.replay.steps) for d in s.devices]))
            if found.lost_ns > most + _ROUNDING_NS:
                yield f"{cause} loses {found.lost_ns} of {most:.0f} ns"


def _mean(device: Device, part: str, steps: int) -> float:
    """Of a step; without marked steps of the window."""
    splits: list[TimeSplit] = list(device.steps[:steps]) if steps > 1 else [device]
    known = [getattr(split, part) for split in splits]
    return float("inf") if None in known else float(np.mean(known))
