"""An effect judged: worse, same or better, or cannot tell, and what it would take to tell. Knows no run and no file."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import log1p
from typing import NamedTuple

from harness.analysis.statistics import FEWEST_RUNS, Effect, Sample, effect, with_runs

BLOCK_RUNS = 4  # of A B B A
MOST_RUNS = 64  # of a side; a machine that needs more is better made quiet
USUAL_RUNS = 4  # of a side, unless asked


class ChangeVerdict(str, Enum):
    """What may be said of B against A."""

    FINE = "same or better"
    WORSE = "worse"
    UNKNOWN = "cannot tell"
    NOT_COMPARABLE = "not comparable"

    @property
    def exit_code(self) -> int:
        """Of a command that ends with this verdict; 2 is a wrong request (harness/common/errors.py)."""
        return {ChangeVerdict.FINE: 0, ChangeVerdict.WORSE: 1}.get(self, 3)


class JudgedChange(NamedTuple):
    """A verdict with its reason. needed: runs of each side with which runs that vary like these would tell; None where
    the verdict is one, or MOST_RUNS would not do. worse_is_more: else a smaller number is the worse one."""

    verdict: ChangeVerdict
    why: str
    found: Effect | None
    needed: int | None = None
    worse_is_more: bool = True


def judge(
    a: Sequence[Sample], b: Sequence[Sample], fail_above: float, worse_is_more: bool = True
) -> JudgedChange:
    """B against A, one sample per run.

    fail_above: the share by which B may be worse: 0.05 lets 5 % pass. Where less is worse, A may be so much more than
    B. The rule: docs/check.md.

    Raises:
        ValueError: a value is not above zero.
    """
    if not all(sample.value > 0 for sample in (*a, *b)):
        raise ValueError("ratios need numbers above zero")
    found = effect(a, b)
    if found is None:
        return JudgedChange(ChangeVerdict.UNKNOWN, _too_few(a, b), None, USUAL_RUNS, worse_is_more)
    as_cost = found if worse_is_more else found._replace(log_ratio=-found.log_ratio)
    verdict, why = _decided(as_cost, fail_above)
    needed = _needed(as_cost, fail_above) if verdict is ChangeVerdict.UNKNOWN else None
    return JudgedChange(verdict, why, found, needed, worse_is_more)


def _too_few(a: Sequence[Sample], b: Sequence[Sample]) -> str:
    if min(len(a), len(b)) < FEWEST_RUNS:
        counts = f"A has {_runs(len(a))} and B {_runs(len(b))}"
        return f"{counts}: the steps of one run do not show how much runs vary"
    return "no block of runs has both A and B, or there are too few runs to know how much runs vary"


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def _decided(found: Effect, fail_above: float) -> tuple[ChangeVerdict, str]:
    """Of an effect in which more is worse."""
    limit = log1p(fail_above)
    low, high = found.log_ratio - found.reach, found.log_ratio + found.reach
    allowed = f"{100 * fail_above:g} %"
    if low > 0 and found.log_ratio > limit:
        return (
            ChangeVerdict.WORSE,
            f"B is worse: the interval is above 1, and the ratio is beyond {allowed}",
        )
    if high < 0:
        return ChangeVerdict.FINE, "B is better: the whole interval is below 1"
    if high < limit:
        if found.smallest_seen <= fail_above:
            return (
                ChangeVerdict.FINE,
                f"B is not worse by {allowed}, and these runs would have shown such a change",
            )
        return ChangeVerdict.UNKNOWN, f"these runs would not have shown a change of {allowed}"
    if low > 0:
        return ChangeVerdict.UNKNOWN, f"B is worse, but these runs do not show whether by more than {allowed}"
    return ChangeVerdict.UNKNOWN, f"the interval contains both no change and a change of {allowed}"


def _needed(found: Effect, fail_above: float) -> int | None:
    """The fewest runs of each side, more than now, with which the same ratio and spread would be decided."""
    for each in range(min(found.runs) + 1, MOST_RUNS + 1):
        if _decided(with_runs(found, each, BLOCK_RUNS), fail_above)[0] is not ChangeVerdict.UNKNOWN:
            return each
    return None
