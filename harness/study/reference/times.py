"""Whether a variant's step time changed, from one number of each run. Knows numbers, and no run on disk."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import log1p
from statistics import fmean
from typing import NamedTuple

from harness.analysis.statistics import Effect, Sample, effect, further_run

USUAL_SHARE = 0.05  # a step that moved by less did not move


class StepTimeChange(str, Enum):
    """What may be said of the new runs' step."""

    SAME = "same"
    SLOWER = "slower"
    FASTER = "faster"
    UNKNOWN = "cannot tell"


class Timed(NamedTuple):
    """The verdict with its reason. ratio: new over stored, None without times; found: None of one run of each."""

    moved: StepTimeChange
    why: str
    ratio: float | None
    found: Effect | None


def timed(stored_ns: Sequence[float], new_ns: Sequence[float], share: float = USUAL_SHARE) -> Timed:
    """New runs against stored ones, one time > 0 per run.

    It moved if the 95 % interval of the ratio lies beyond 1 and the ratio beyond 1 ± share; it is the same if the
    whole interval lies within. One run is compared with the spread of the other arm's: the prediction interval of a
    further run (Montgomery, Design and Analysis of Experiments, chapter 2).
    """
    if not stored_ns or not new_ns:
        return Timed(StepTimeChange.UNKNOWN, "no step was measured", None, None)
    stored, new = ([Sample(value) for value in arm] for arm in (stored_ns, new_ns))
    found = effect(stored, new) or further_run(stored, new)
    if found is None:
        ratio = fmean(new_ns) / fmean(stored_ns)
        return Timed(StepTimeChange.UNKNOWN, "one run of each does not show how much runs vary", ratio, None)
    moved, why = _decided(found, share)
    return Timed(moved, why, found.ratio, found)


def _decided(found: Effect, share: float) -> tuple[StepTimeChange, str]:
    low, high = found.log_ratio - found.reach, found.log_ratio + found.reach
    limit, allowed = log1p(share), f"{100 * share:g} %"
    if low > 0 and found.log_ratio > limit:
        return StepTimeChange.SLOWER, f"the interval excludes no change, and the ratio is beyond {allowed}"
    if high < 0 and found.log_ratio < -limit:
        return StepTimeChange.FASTER, f"the interval excludes no change, and the ratio is beyond {allowed}"
    if -limit < low and high < limit:
        return StepTimeChange.SAME, f"the whole interval is within {allowed}"
    seen = found.smallest_seen
    few = "there are too few runs, because they vary much"
    return StepTimeChange.UNKNOWN, f"these runs show no change below {100 * seen:.0f} %" if seen < 1 else few
