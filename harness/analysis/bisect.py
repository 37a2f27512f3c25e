"""Whether a commit has the regression that a bisect looks for: two hypotheses, by as many runs as the noise asks for.
Knows numbers only, one per run.

The size of the regression is measured once, between the good and the bad end. It must be certain: a false one would
blame a commit although none is guilty. Then each commit is compared with the good end, in blocks of neighbouring runs:
either nothing changed, or the whole regression is there. The test is Wald's sequential one (1945, Sequential tests of
statistical hypotheses): runs are added until the odds of the two hypotheses are beyond (1 - error) / error. The noise
is estimated, so the likelihoods are Student's t, which also makes one disturbed run count less than a normal law would.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt
from typing import Literal, NamedTuple

from harness.analysis.statistics import MeasuredEffect, t_quantile

FALSE_ALARM = 0.001  # of all looks at good and bad together, if they are equal
MISSED = 0.01  # the chance to give up at one look although bad is worse by the limit
WRONG_STEPS = 0.02  # the chance that any step of a bisect is wrong
FEWEST = 4  # runs of each end, at the first look
_LEAST_DEVIATION = 1e-6  # runs that agree to the last digit say nothing of the next one
_OWN_DF = 4  # from so many degrees of freedom on, a step's own noise counts alone if it is larger


class Regression(NamedTuple):
    """Bad against good. log_ratio: its natural logarithm, above zero if bad is worse, with its standard error.
    deviation: of one run, with its degrees of freedom."""

    log_ratio: float
    error: float
    deviation: float
    df: float


Size = Regression | Literal["none", "more runs"]
"""none: bad is not worse by the limit. more runs: these do not tell."""


def looks(most: int) -> list[int]:
    """At how many runs of each end the regression is looked for.

    >>> looks(32), looks(6)
    ([4, 8, 16, 32], [4, 6])
    """
    doubled = [FEWEST << n for n in range(most.bit_length()) if FEWEST << n < most]
    return [*doubled, most]


def size(effect: MeasuredEffect, limit: float, number_of_looks: int) -> Size:
    """The regression that runs of both ends show. found: bad against good, above zero if bad is worse. limit: a share;
    a smaller regression is not looked for."""
    certain = t_quantile(1 - FALSE_ALARM / number_of_looks, effect.df)
    if effect.log_ratio > certain * effect.error:
        return Regression(effect.log_ratio, effect.error, max(effect.deviation, _LEAST_DEVIATION), effect.df)
    most = effect.log_ratio + t_quantile(1 - MISSED, effect.df) * effect.error
    return "none" if most < log1p(limit) else "more runs"


def least_seen(effect: MeasuredEffect, number_of_looks: int) -> float:
    """The smallest regression, as a share, that is certain in nine of ten such sets of runs (Bloom 1995)."""
    sure, usual = t_quantile(1 - FALSE_ALARM / number_of_looks, effect.df), t_quantile(0.9, effect.df)
    return exp((sure + usual) * effect.error) - 1


def wrong_step(commits: int) -> float:
    """The chance of a wrong step with which the whole bisect of so many commits keeps WRONG_STEPS.

    >>> wrong_step(16), wrong_step(1)
    (0.005, 0.02)
    """
    return WRONG_STEPS / max(1, (commits - 1).bit_length())


def runs_to_tell(regression: Regression, error: float, most: int) -> int:
    """The fewest runs of each, in whole blocks, that would tell if the commit were exactly as bad as the bad end."""
    for each in range(2, most, 2):
        df = regression.df + 2 * each - each // 2 - 1
        if _log_odds(regression.log_ratio, regression, _error(regression.deviation, each, each), df) >= _bound(error):
            return each
    return most


def next_runs(each: int, most: int) -> int:
    """How many runs of each to look at next: half as many again, in whole blocks."""
    return min(most, each + 2 * max(1, each // 4))


def has_it(effect: MeasuredEffect, regression: Regression, error: float) -> bool | None:
    """Whether the commit has the regression; None: these runs do not tell. found: the commit against the good end,
    above zero if the commit is worse."""
    df = regression.df + effect.df
    pooled = sqrt((regression.df * regression.deviation**2 + effect.df * effect.deviation**2) / df)
    noise = max(pooled, effect.deviation) if effect.df >= _OWN_DF else pooled
    odds = _log_odds(effect.log_ratio, regression, _error(noise, *effect.runs), df)
    return odds > 0 if abs(odds) >= _bound(error) else None


def _error(deviation: float, a: int, b: int) -> float:
    """Standard error of a difference of two means."""
    return deviation * sqrt(1 / a + 1 / b)


def _bound(error: float) -> float:
    return log((1 - error) / error)


def _log_odds(log_ratio: float, regression: Regression, error: float, df: float) -> float:
    """The logarithm of the likelihood of the whole regression over that of none. Halfway between the two lies half of
    the size, so half of the size's error counts."""
    whole = sqrt(error**2 + regression.error**2 / 4)
    none, all_of_it = log_ratio / whole, (log_ratio - regression.log_ratio) / whole
    return (df + 1) / 2 * (log1p(none**2 / df) - log1p(all_of_it**2 / df))
