"""Two arms and one number of each: by how much b differs from a, and the verdict. Every command that compares runs
makes this document. Knows no run on disk.

What the 95 % interval is computed from depends on the arms: of several runs of each
arm the run is the sample (analysis/statistics.py); one run is compared with the spread of the other arm's runs; of one
run of each only the steps are known, which say whether these runs differ, not whether the commands do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from statistics import NormalDist, fmean, geometric_mean, median, variance
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from harness.analysis.statistics import (
    CONFIDENCE,
    FEWEST_RUNS,
    POWER,
    MeasuredEffect,
    Sample,
    effect,
    further_run,
    with_runs,
)
from harness.compare.arms import Arm
from harness.compare.groups import TwoGroups, two_groups
from harness.compare.verdict import ChangeVerdict, Interval, Threshold, change_text, decide

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_RUNS = 4  # of A B B A
MOST_RUNS = 64  # of an arm; a machine that needs more is better made quiet
USUAL_RUNS = 4  # of an arm
RESAMPLES = 4000
SEED = 20_000  # the interval of the same two runs is the same every time
TOO_FEW_STEPS = "too few steps to tell"
FEWEST_STEPS = 4  # even the whole range of fewer covers the median less than seven times in eight

_REACH = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

Noise = Literal["runs", "steps"]


class ComparisonPart(BaseModel):
    """A piece of a comparison."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", defer_build=True)


class Difference(ComparisonPart):
    """One thing in which the arms differ; None: not set or not recorded."""

    name: str
    a: Any
    b: Any


class ArmValue(ComparisonPart):
    """The number of one arm. n: of how many runs it is. steps: of one run that its steps judge, their number. groups:
    None: its runs are one group, or too few to tell."""

    name: str
    value: float | None
    n: int
    steps: int | None = None
    groups: TwoGroups | None = None


class Comparison(ComparisonPart):
    """b against a in one number. ratio: b / a with its 95 % interval; noise: what the interval is computed from.
    threshold: the change, as a share, that still counts as the same. smallest_seen: the smallest change that such runs
    see nine times in ten. run_deviation: of one run, as a share. needed_runs: of each arm, that would tell."""

    metric: str
    worse_is: Literal["more", "less"] = "more"
    a: ArmValue
    b: ArmValue
    ratio: float | None
    low: float | None = None
    high: float | None = None
    confidence: float = CONFIDENCE
    noise: Noise | None = None
    threshold: float
    verdict: ChangeVerdict
    why: str
    smallest_seen: float | None = None
    power: float = POWER
    run_deviation: float | None = None
    in_blocks: bool = False
    needed_runs: int | None = None

    def groups_of(self, a: str, b: str) -> list[str]:
        """A sentence for each arm whose runs fall into two groups. a, b: what the arms are called."""
        arms = ((a, self.a), (b, self.b))
        return [arm.groups.text(name, self.metric) for name, arm in arms if arm.groups is not None]

    @property
    def groups_text(self) -> str:
        """What is said before the verdict; empty if no arm falls into two groups."""
        return ". ".join(self.groups_of("A", "B"))

    @property
    def groups_advice(self) -> str:
        """What to do in place of more runs, as a clause; empty if no arm falls into two groups."""
        found = [arm.groups for arm in (self.a, self.b) if arm.groups is not None]
        if not found:
            return ""
        facts = "; ".join(dict.fromkeys(fact for groups in found for fact in groups.goes_with))
        look = f"look at this first: {facts}" if facts else "first find out in what the groups differ"
        return f"more runs would fall into the same two groups; {look}"

    @property
    def change(self) -> str:
        """`+12.3 % ± 1.1 %`."""
        return change_text(self.ratio, self.low, self.high)

    @property
    def interval(self) -> Interval | None:
        """b / a with both ends; None: an end is not known."""
        if self.ratio is None or self.low is None or self.high is None:
            return None
        return Interval(self.ratio, self.low, self.high)

    @property
    def excludes_no_change(self) -> bool:
        """Whether the arms certainly differ, however little."""
        return self.interval is not None and self.interval.excludes_no_change


def compare_arms(
    metric: str, a: Arm, b: Arm, threshold: Threshold | None = None, *, more_is_worse: bool = True
) -> Comparison:
    """b against a; a value of a run is above zero, else there is no ratio."""
    limit = threshold or Threshold()
    found = Comparison(
        metric=metric,
        worse_is="more" if more_is_worse else "less",
        a=_value(metric, a, more_is_worse),
        b=_value(metric, b, more_is_worse),
        ratio=None,
        threshold=limit.share,
        verdict=ChangeVerdict.UNKNOWN,
        why=_lacking(metric, a, b),
    )
    if found.a.value is None or found.b.value is None:
        return found
    found = _with(found, ratio=found.b.value / found.a.value)
    seen = effect(a.runs, b.runs)
    if seen is None and min(len(a.runs), len(b.runs)) < FEWEST_RUNS and not (a.steps and b.steps):
        seen = further_run(a.runs, b.runs)
    if seen is not None:
        return _of_runs(found, seen, limit, more_is_worse)
    if a.steps and b.steps:
        return _of_steps(found, a, b, limit, more_is_worse)
    return _with(found, why=_too_few(found), needed_runs=USUAL_RUNS)


def compare_steps(a: tuple[str, Sequence[Sequence[float]]], b: tuple[str, Sequence[Sequence[float]]]) -> Comparison:
    """The median step of named arms, from the steps of each run. The runs in the same place of both arms are a pair,
    whose sample is its steps."""
    pairs = [
        compare_arms("step_ns", Arm(a[0], samples([median(of_a)]), of_a), Arm(b[0], samples([median(of_b)]), of_b))
        for of_a, of_b in zip(a[1], b[1], strict=False)
    ]
    return pairs[0] if len(pairs) == 1 else _of_pairs(pairs)


def _of_pairs(pairs: Sequence[Comparison]) -> Comparison:
    """The geometric mean of pairs. Its error is the larger one of what the steps give and of what the pairs differ by:
    pairs that agree narrow the interval, and those that do not widen it as far as they lie apart. Of two or three pairs
    it is short: a t interval of two has decades, and says nothing of a change that every pair shows."""
    known = [each.interval for each in pairs if each.interval is not None]
    logs = [log(each.ratio) for each in known]
    of_steps = sqrt(sum(log(each.high / each.low) ** 2 for each in known)) / (2 * len(known))
    reach = max(of_steps, _REACH * sqrt(variance(logs) / len(known)))
    interval = Interval(*(exp(fmean(logs) + end) for end in (0, -reach, reach)))
    verdict, why = decide(interval, Threshold(pairs[0].threshold))
    if any(each.why == TOO_FEW_STEPS for each in pairs):
        verdict, why = ChangeVerdict.UNKNOWN, TOO_FEW_STEPS
    a, b = (_of_all(runs) for runs in zip(*((each.a, each.b) for each in pairs), strict=True))
    return _with(pairs[0], a=a, b=b, **interval._asdict(), verdict=verdict, why=why)


def _of_all(runs: Sequence[ArmValue]) -> ArmValue:
    values, steps = [run.value for run in runs if run.value], sum(run.steps or 0 for run in runs)
    known = {"value": geometric_mean(values), "n": len(runs), "steps": steps, "groups": two_groups("step_ns", values)}
    return runs[0].model_copy(update=known)


def without_verdict(comparison: Comparison, verdict: ChangeVerdict, why: str) -> Comparison:
    """The same numbers, where something other than they forbids a verdict."""
    return _with(comparison, verdict=verdict, why=why, needed_runs=None)


def _with(comparison: Comparison, **changes: object) -> Comparison:
    return comparison.model_copy(update=changes)


def _value(metric: str, arm: Arm, more_is_worse: bool) -> ArmValue:
    numbers = list(arm.steps) if arm.steps else [run.value for run in arm.runs]
    positive = bool(numbers) and min(numbers) > 0
    mean = median if arm.steps or len(numbers) == 1 else geometric_mean
    number = mean(numbers) if positive else None
    steps = len(arm.steps) if arm.steps else None
    judged = numbers if positive and not arm.steps else []
    groups = two_groups(metric, judged, arm.facts, more_is_worse=more_is_worse)
    return ArmValue(name=arm.name, value=number, n=len(arm.runs), steps=steps, groups=groups)


def _lacking(metric: str, *arms: Arm) -> str:
    for arm in arms:
        zero = next((run.value for run in arm.runs if run.value <= 0), None)
        if zero is not None:
            return f"{metric} is {zero:g} in a run of {arm.name}, so there is no ratio"
        if not arm.runs:
            return f"no run of {arm.name} has {metric}"
    return ""


def _of_runs(comparison: Comparison, seen: MeasuredEffect, threshold: Threshold, more_is_worse: bool) -> Comparison:
    verdict, why = decide(_cost(seen, more_is_worse), threshold)
    return _with(
        comparison,
        ratio=seen.ratio,
        low=seen.interval[0],
        high=seen.interval[1],
        noise="runs",
        verdict=verdict,
        why=why,
        smallest_seen=seen.smallest_seen,
        run_deviation=exp(seen.deviation) - 1,
        in_blocks=seen.in_blocks,
        needed_runs=_needed(seen, threshold, more_is_worse) if verdict is ChangeVerdict.UNKNOWN else None,
    )


def _cost(seen: MeasuredEffect, more_is_worse: bool) -> Interval:
    found = Interval(seen.ratio, *seen.interval)
    return found if more_is_worse else found.inverse


def _needed(seen: MeasuredEffect, threshold: Threshold, more_is_worse: bool) -> int | None:
    """The fewest runs of each arm, more than now, with which the same ratio and spread would be decided."""
    for each in range(min(seen.runs) + 1, MOST_RUNS + 1):
        more = with_runs(seen, each, BLOCK_RUNS)
        if more.error < inf and decide(_cost(more, more_is_worse), threshold)[0] is not ChangeVerdict.UNKNOWN:
            return each
    return None


def _of_steps(comparison: Comparison, a: Arm, b: Arm, threshold: Threshold, more_is_worse: bool) -> Comparison:
    low, high = bootstrap_ratio(a.steps, b.steps)
    known = _with(comparison, low=low, high=high, noise="steps")
    if min(len(a.steps), len(b.steps)) < FEWEST_STEPS:
        return _with(known, why=TOO_FEW_STEPS)
    interval = Interval(known.ratio or 1.0, low, high)
    verdict, why = decide(interval if more_is_worse else interval.inverse, threshold)
    return _with(known, verdict=verdict, why=why)


def _too_few(comparison: Comparison) -> str:
    if max(comparison.a.n, comparison.b.n) < FEWEST_RUNS:
        return "one run of each does not show how much runs vary"
    return "no block of runs has both A and B, or there are too few runs to know how much runs vary"


def bootstrap_ratio(
    a: Sequence[float] | NDArray[np.float64], b: Sequence[float] | NDArray[np.float64]
) -> tuple[float, float]:
    """The 95 % percentile interval of median(b) / median(a), resampling the steps of both (Efron & Tibshirani 1993, An
    Introduction to the Bootstrap, chapter 13)."""
    import numpy as np

    random = np.random.default_rng(SEED)
    medians_a, medians_b = (
        np.median(steps[random.integers(0, len(steps), (RESAMPLES, len(steps)))], axis=1)
        for steps in (np.asarray(a), np.asarray(b))
    )
    low, high = np.percentile(medians_b / medians_a, (2.5, 97.5))
    return float(low), float(high)


def samples(values: Sequence[float]) -> list[Sample]:
    """Numbers of runs of which no block is known."""
    return [Sample(value) for value in values]
