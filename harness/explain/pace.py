"""Changes of pace and the slowest rank in sentences. Finds nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.pace import DetectedChange
from harness.analysis.slowest_rank import Slowest
from harness.common.display.format import duration, percent, takes
from harness.common.display.text import ranks_named

_PHASES = {"data": "data loading", "optimizer": "the optimizer"}
_BACK = 0.3  # of a change, within which the pace is again what it was


def worth_telling(slowest_rank: Slowest, changes: Sequence[DetectedChange]) -> bool:
    """Whether the slowest rank is told: the others wait, and no change tells the same of it."""
    told = any(change.named and change.ranks == (slowest_rank.rank,) for change in changes)
    return slowest_rank.kind != "never" and not (told and slowest_rank.kind != "always")


def returns(detected_change: DetectedChange, change: DetectedChange) -> bool:
    """Whether the pace is again about what it was before the earlier change."""
    opposite = (detected_change.ratio > 1) != (change.ratio > 1)
    return opposite and abs(change.after - detected_change.before) < _BACK * abs(
        detected_change.after - detected_change.before
    )


def change_sentence(change: DetectedChange, phase: str | None, unit_ns: float = 1.0) -> str:
    """One change in words. phase: the one that changed, if it is known."""
    until = " on" if change.lasts is None else f" until step {change.lasts}"
    before, after = duration(change.before * unit_ns), duration(change.after * unit_ns)
    return (
        f"Steps take {takes(change.ratio)} from step {change.step}{until}: "
        f"{before} before, {after} after{_where(change, phase)}."
    )


def _where(change: DetectedChange, phase: str | None) -> str:
    inside = "" if phase is None else f", in {_PHASES.get(phase, phase)}"
    if not change.named:
        return f"{inside}; which rank caused it cannot be known from these times" if len(change.ranks) > 1 else inside
    return f"; on {ranks_named(change.ranks)}{inside}"


def slowest_sentence(slowest: Slowest, step: float | None, unit_ns: float = 1.0) -> str:
    """The slowest rank in words. step: the job's median step."""
    of_step = "" if not step else f" ({percent(slowest.costs / step)})"
    costs = f"{duration(slowest.costs * unit_ns)}{of_step}"
    if slowest.rank is None:
        return f"The ranks are the slowest in turns: half of them wait {costs} or more per step for the slowest one."
    often = {"always": "always the slowest", "often": "often the slowest", "rarely": "the slowest in few steps"}
    return (
        f"Rank {slowest.rank} is {often[slowest.kind]}: clearly in {percent(slowest.share)} of the steps. "
        f"If it was as fast as the next one, a step would be up to {costs} shorter."
    )
