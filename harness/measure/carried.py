"""What a job's recording can carry of the causes and predictions that were found in it: by its kind, and without the
profiler's own weight."""

from __future__ import annotations

from collections.abc import Iterable

from harness.analysis.summary import ProfilerCost, Summary, TimeLost, Withheld
from harness.replay.causes import CAUSES
from harness.replay.diagnosis import NOTICEABLE
from harness.replay.suspect import Cause

SLOWED = 1.15  # profiled steps over the others, from which losses are corrected, and the answer says it
OF_PROFILER = "findings.tiny-kernels"


def carried(summary: Summary) -> Summary:
    """The summary without the causes and predictions that its kind of recording cannot carry."""
    withheld = {one.field for one in summary.quality.withheld}
    found, replay = summary.findings, summary.replay
    if "findings" in withheld:
        found = []
    elif "findings.host" in withheld:
        found = [one for one in found if not CAUSES[one.cause].of_host]
    if "replay.what_ifs" in withheld and replay is not None:
        replay = replay.model_copy(update={"what_ifs": [], "ideal_network_ns": None})
    return summary.model_copy(update={"findings": found, "replay": replay})


def without_profiler(summary: Summary) -> Summary:
    """The summary with its losses without the profiler's weight, where the steps outside of the window are known."""
    found = corrected(summary.findings, summary.profiler_cost)
    if len(found) == len(summary.findings):
        return summary.model_copy(update={"findings": found})
    reason = "the time between operators is no longer than what the profiler adds to a step"
    withheld = [*summary.quality.withheld, Withheld(field=OF_PROFILER, reason=reason)]
    quality = summary.quality.model_copy(update={"withheld": withheld})
    return summary.model_copy(update={"findings": found, "quality": quality})


def corrected(found: Iterable[TimeLost], cost: ProfilerCost | None) -> list[TimeLost]:
    """The losses, the largest first, with those to small operators divided by the factor by which profiled steps are
    longer; without those that the profiler alone explains.

    The profiler adds time to each operator and each call. A stall, a wait or a pause holds few of them.
    """
    if cost is None or cost.ratio <= SLOWED:
        return [*found]
    added_ns = cost.profiled_step_ns - cost.unprofiled_step_ns
    kept = [
        _divided(one, cost.ratio) if one.cause == Cause.TINY_KERNELS else one
        for one in found
        if one.cause != Cause.TINY_KERNELS
        or (one.lost_ns > added_ns and one.share / cost.ratio >= NOTICEABLE)
    ]
    return sorted(kept, key=lambda one: -one.lost_ns)


def _divided(one: TimeLost, ratio: float) -> TimeLost:
    low, high = (None if ns is None else round(ns / ratio) for ns in (one.low_ns, one.high_ns))
    less = {"lost_ns": round(one.lost_ns / ratio), "share": one.share / ratio, "low_ns": low, "high_ns": high}
    return one.model_copy(update={**less, "recorded_lost_ns": one.lost_ns})
