"""What no promise and no finding may exceed, computed from a summary's devices alone: a step has to compute. Knows no
replay, and no more of a summary than its fields' names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROUNDING_NS = 3.0
WITHIN = 0.002  # of the step: windows of devices and marks of the host differ by so much
_SETTLED = 3  # steps, of more the first is not counted in a gain
_HALF_AS_OFTEN = {"micro-batch-x2": 0.5, "micro-batches-x2": 0.5, "gas-x2": 0.5, "gas-x4": 0.75}
_LIKE_THE_LEAST = ("rank-like-others", "no-extra-compute")
_INSIDE_OPERATORS = ("no-noisy-neighbour", "no-pause")
_SAVED = {"fp32": 1 / 2, "tf32": 1 / 3}  # of the products' time, as the careful end has it
_OF_WORK = (
    *("extra-compute", "long-sequences", "uneven-stages", "slow-device", "late-rank"),
    *("fp32", "layout", "evaluation"),
)  # findings of which the work itself is less


def broken_promises(summary: Any) -> list[str]:
    """Each promise and finding of a replayed job that claims more than its devices' time allows, in words."""
    if summary.replay is None or not summary.devices:
        return []
    return [*_what_ifs(summary), *_findings(summary), *_rest(summary)]


def _what_ifs(s: Any) -> Iterator[str]:
    for what in s.replay.what_ifs:
        least = _least_ns(s, what.name) - WITHIN * s.replay.step_ns - ROUNDING_NS
        if not 0 <= what.gain <= 1:
            yield f"{what.name} gains {what.gain:.1%}"
        if what.step_ns < least:
            yield f"{what.name} promises {what.step_ns} ns where {least:.0f} ns are work"
        if what.low_ns is not None and not what.ranged and what.low_ns < least:
            yield f"{what.name} may take {what.low_ns} ns where {least:.0f} ns are work"
        if what.low_ns is not None and not 0 <= what.low_ns <= what.step_ns + ROUNDING_NS:
            yield f"{what.name} has a lower end of {what.low_ns} ns"


def _findings(s: Any) -> Iterator[str]:
    replay = s.replay
    left = max(_works(s)) if s.devices[0].device_kind == "gpu" else 0.0
    for found in s.findings:
        low, high = found.low_ns, found.high_ns
        if not 0 <= found.lost_ns <= replay.step_ns + ROUNDING_NS or not 0 <= found.share <= 1.0001:
            yield f"{found.cause} loses {found.lost_ns} of {replay.step_ns} ns"
        if low is not None and not 0 <= low <= high <= replay.step_ns + ROUNDING_NS:
            yield f"{found.cause} has an interval from {low} to {high} ns"
        if found.cause == "layout" and found.lost_ns > max(_layouts(s)) * (1 + WITHIN) + ROUNDING_NS:
            yield f"{found.cause} loses {found.lost_ns} ns, more than its kernels take"
        if found.basis == "replay" and found.cause not in _OF_WORK:
            most = replay.step_ns - left + WITHIN * replay.step_ns + ROUNDING_NS
            if found.lost_ns > most:
                yield f"{found.cause} loses {found.lost_ns} ns where {most:.0f} ns are not work"


def _rest(s: Any) -> Iterator[str]:
    left = s.replay.unexplained_ns
    if left is not None and not 0 <= left <= s.replay.step_ns + ROUNDING_NS:
        yield f"{left} ns of {s.replay.step_ns} ns are not explained"


def _least_ns(s: Any, change: str) -> float:
    """The shortest step with a change, by the devices' work."""
    works = _works(s)
    if change == "fused" or (change in _INSIDE_OPERATORS and s.devices[0].device_kind == "cpu"):
        return 0.0
    if change in _LIKE_THE_LEAST:
        return min(_works(s, least=True))
    if change == "products-x2":
        return max(work - saved for work, saved in zip(works, _products(s), strict=True))
    return max(works) - _HALF_AS_OFTEN.get(change, 0.0) * _optimizer(s)


def _steps(device: Any, count: int) -> list[Any]:
    """The splits of the replayed steps; without marked steps the window is one."""
    return list(device.steps[:count]) if count > 1 or len(device.steps) == 1 else [device]


def _works(s: Any, *, least: bool = False) -> list[float]:
    """The computing of each device in a step, in nanoseconds: mean, or the least of its steps."""
    found = []
    for device in s.devices:
        work = [split.compute_ns for split in _steps(device, s.replay.steps)]
        later = work[1:] if len(work) > _SETTLED else work
        found.append(min(work) if least else min(sum(work) / len(work), sum(later) / len(later)))
    return found


def _products(s: Any) -> list[float]:
    """What half of the fp32 products and a third of the tf32 products take, by device and step."""
    count = max(s.replay.steps, 1)
    return [sum(k.duration_ns * _SAVED.get(k.precision, 0.0) for k in d.kinds) / count for d in s.devices]


def _layouts(s: Any) -> list[float]:
    """What conversions of layout take, by device and step."""
    count = max(s.replay.steps, 1)
    return [sum(k.duration_ns for k in d.kinds if k.kind == "layout") / count for d in s.devices]


def _optimizer(s: Any) -> float:
    """The optimizer's computing in a step, of the slowest device; of stages that differ, of all together."""
    total: int = sum(phase.compute_ns for phase in s.phases if phase.phase == "optimizer")
    works = _works(s)
    of_slowest = 1.0 if s.pipeline else max(works) / max(sum(works), 1)
    count: int = max(s.replay.steps, 1)
    return total / count * of_slowest
