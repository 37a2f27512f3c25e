"""What a halved check says: the thing, the pair or the group that makes B slow, and what it costs. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp, inf, log, log1p
from typing import TypeVar

from harness.analysis.statistics import CONFIDENCE, FEWEST_RUNS, t_quantile
from harness.common.display.format import metric_text, percent
from harness.common.display.text import how_many
from harness.compare.comparison import BLOCK_RUNS, MOST_RUNS, Comparison
from harness.study.check.halving import PRECISION, Cause
from harness.study.check.result import MEAN_STEP, PER_TOKEN, STEP, Checked, Halved, HalvingStep

C = TypeVar("C", bound=Comparison)
_A_STEP = {STEP: " a step", MEAN_STEP: " a step", PER_TOKEN: " a token"}


def loss_of(comparison: Comparison) -> tuple[float, float, float]:
    """The natural logarithm of how many times worse B is, and the ends of its interval; without one from −∞ to ∞."""
    interval = comparison.interval
    if interval is None:
        return 0.0, -inf, inf
    ratio, low, high = map(log, interval if comparison.worse_is == "more" else interval.inverse)
    return ratio, low, high


def share_of(step: Comparison, total: Comparison) -> float | None:
    """The share of B's loss that a step has; 0 if it may have none; None: its interval is too long to tell."""
    (loss, low, high), (whole, _, _) = loss_of(step), loss_of(total)
    if high - loss > PRECISION * whole:
        return None
    return loss / whole if low > 0 else 0.0


def shared_loss(check: Callable[[int], C], total: Comparison, runs: int) -> tuple[C, float | None]:
    """A step and its share of B's loss, from so many runs of each arm or, if these do not tell it, from twice as many.
    check: makes the step from so many runs."""
    step = check(runs)
    share = share_of(step, total)
    if share is not None:
        return step, share
    step = check(min(2 * runs, MOST_RUNS))
    return step, share_of(step, total)


def runs_for(total: Comparison) -> int | None:
    """The runs of each arm with which a step is precise enough, if they vary as those of the first check did; None: as
    many as the most are not enough."""
    whole, deviation = loss_of(total)[0], log1p(total.run_deviation or 0)
    for each in range(FEWEST_RUNS, MOST_RUNS + 1):
        blocks = -(-2 * each // BLOCK_RUNS) if total.in_blocks else 1
        df = 2 * each - blocks - 1
        if df > 0 and t_quantile((1 + CONFIDENCE) / 2, df) * deviation * (2 / each) ** 0.5 <= PRECISION * whole:
            return each
    return None


def halved(things: Sequence[str], steps: list[HalvingStep], cause: Cause, of_cause: Checked, total: Checked) -> Halved:
    """The result. of_cause: the check of A against A with the cause and no others; if there is none, the whole one."""
    names, others = ([things[each] for each in numbers] for numbers in (cause.things, cause.acts_with))
    ratio, low, high = loss_of(of_cause)
    value = of_cause.b.value or 0.0
    return Halved(
        things=list(things),
        steps=steps,
        cause=names,
        acts_with=others,
        is_enough=cause.is_enough,
        cost=_lost(of_cause, value, ratio),
        low=_lost(of_cause, value, low),
        high=_lost(of_cause, value, high),
        told=list(_told(names, others, cause, of_cause, total)),
    )


def _lost(comparison: Comparison, value: float, loss: float) -> float:
    """By how much B's value is worse than without this loss."""
    return value * abs(1 - exp(-loss if comparison.worse_is == "more" else loss))


def _told(names: list[str], others: list[str], cause: Cause, of_cause: Checked, total: Checked) -> Iterator[str]:
    what = " and ".join([_joined(names), *([_joined(others)] if others else [])])
    if not names:
        yield "A with all of these things is not slow, so B has something else that costs it: compare the two by hand"
    elif not cause.is_enough:
        yield f"{what} are among what makes it slow together with others; A with them alone is not as slow as B"
    if not cause.is_enough:
        return
    ratio, low, high = loss_of(of_cause)
    value = of_cause.b.value or 0.0
    numbers = [_lost(of_cause, value, each) for each in (ratio, low, high)]
    cost, least, most = (metric_text(of_cause.metric, each) for each in numbers)
    verb = "cost" if len(names) + len(others) > 1 else "costs"
    together = " together" * bool(others)
    yield (
        f"{what}{together} {verb} {cost} of {metric_text(of_cause.metric, value)}{_A_STEP.get(of_cause.metric, '')} "
        f"({percent(numbers[0] / value)}; {least} to {most})"
    )
    if others:
        yield f"{_joined(names)} without {_joined(others)} costs nothing that these runs show"
    if len(names) > 1:
        yield f"These {how_many(len(names), 'thing')} could not be taken apart: A with a part of them does not run"
    rest = loss_of(total)[0] - ratio
    if rest > max(high - ratio, loss_of(total)[2] - loss_of(total)[0]) and rest > log1p(total.threshold):
        yield f"Something else costs another {percent(exp(rest) - 1)}: give B A's {_joined(names)}, and check again"


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names)
