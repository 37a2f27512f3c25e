"""The statistics of runs: the 95 % interval of a mean and of a ratio of two commands, from one number of each run.
All comparisons of runs use this module. Knows numbers only.

A run's steps share its nodes, its memory layout and its minutes, so they say little about the next run: the sample is
the run. The logarithm turns a ratio into a difference, and makes the spread of times the same at every size. Times of
runs are nearer to log-normal than to normal, and the interval of a logarithm cannot reach below zero, as Fieller's
interval of a ratio of arithmetic means can.

- A mean: Student's t (Student 1908, The probable error of a mean, Biometrika 6).
- A ratio of two independent sets of runs: Welch's t on the logarithms, which lets one arm vary more than the other
  (Welch 1947, Biometrika 34), with the Welch-Satterthwaite degrees of freedom (Satterthwaite 1946, Biometrics 2). They
  are not rounded, as in R's t.test and SciPy's ttest_ind(equal_var=False): rounding 3.56 down to 3 widens the interval
  of {106, 112, 107} over {100, 101, 104} from [1.003, 1.132] to [0.998, 1.138]. Tests show that the unrounded one
  contains the true ratio in about 95 % of simulated comparisons.
- A ratio within blocks of runs that were made near each other: only differences inside of a block count (two-way
  layout: Montgomery, Design and Analysis of Experiments, chapter 4), so a machine that drifts from block to block
  changes nothing. The order A B B A inside of a block removes an even drift.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from math import exp, inf, lgamma, log, log1p, sqrt
from statistics import fmean, stdev, variance
from typing import NamedTuple

CONFIDENCE = 0.95
POWER = 0.9
FEWEST_RUNS = 2  # of each arm
_PRECISION = 1e-13
_MOST_TERMS = 1000
_TINY = 1e-300
_LARGEST = 1e9


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent, about normal values, one per run; None of fewer than two.

    mean ± t(0.975, n − 1) · s / √n, where s is the sample's standard deviation (Student 1908).
    """
    if len(values) < FEWEST_RUNS:
        return None
    half = t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


class Sample(NamedTuple):
    """One run's number, > 0, and the block of neighbouring runs in which it was made; None: no block is known."""

    value: float
    block: int | None = None


class MeasuredEffect(NamedTuple):
    """The natural logarithm of B / A, its standard error with the error's degrees of freedom, and the standard
    deviation of one run."""

    log_ratio: float
    error: float
    df: float
    deviation: float
    runs: tuple[int, int]
    in_blocks: bool

    @property
    def reach(self) -> float:
        """Half the length of the interval of the logarithm."""
        return t_quantile((1 + CONFIDENCE) / 2, self.df) * self.error

    @property
    def ratio(self) -> float:
        """B over A."""
        return exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of B over A."""
        return exp(self.log_ratio - self.reach), exp(self.log_ratio + self.reach)

    @property
    def smallest_seen(self) -> float:
        """The smallest change, as a share, whose interval would lie beyond 1 in nine of ten such sets of runs.

        Source: Bloom 1995, Minimum detectable effects: (t of the interval + t of the power) × standard error.
        """
        return exp(self.reach + t_quantile(POWER, self.df) * self.error) - 1


def effect(a: Sequence[Sample], b: Sequence[Sample]) -> MeasuredEffect | None:
    """B against A; None if an arm has fewer than two runs, or too few to know how much two runs of one arm differ.

    Blocks count if every run has one.
    """
    if min(len(a), len(b)) < FEWEST_RUNS:
        return None
    in_blocks = all(sample.block is not None for sample in (*a, *b))
    return _within_blocks(a, b) if in_blocks else _welch(a, b)


def _welch(a: Sequence[Sample], b: Sequence[Sample]) -> MeasuredEffect:
    logs = [[log(sample.value) for sample in arm] for arm in (a, b)]
    spread = [variance(arm) for arm in logs]
    parts = [v / len(arm) for v, arm in zip(spread, logs, strict=True)]
    error = sqrt(sum(parts))
    free = sum(part**2 / (len(arm) - 1) for part, arm in zip(parts, logs, strict=True))
    df = error**4 / free if free else float(len(a) + len(b) - 2)
    ratio = fmean(logs[1]) - fmean(logs[0])
    return MeasuredEffect(ratio, error, df, sqrt(fmean(spread)), (len(a), len(b)), in_blocks=False)


def further_run(a: Sequence[Sample], b: Sequence[Sample]) -> MeasuredEffect | None:
    """B against A if one of them is one run: the prediction interval of a further run of the other arm (Montgomery,
    Design and Analysis of Experiments, chapter 2). None if neither arm has two runs."""
    logs = [[log(sample.value) for sample in arm] for arm in (a, b)]
    many = max(logs, key=len)
    if len(many) < FEWEST_RUNS:
        return None
    deviation = stdev(many)
    error = deviation * sqrt(1 + 1 / len(many))
    ratio = fmean(logs[1]) - fmean(logs[0])
    return MeasuredEffect(ratio, error, len(many) - 1.0, deviation, (len(a), len(b)), in_blocks=False)


def _within_blocks(a: Sequence[Sample], b: Sequence[Sample]) -> MeasuredEffect | None:
    """Least squares of log value = block + arm: both without their block's mean (Frisch and Waugh 1933)."""
    rows = [(s.block, arm, log(s.value)) for arm, runs in ((0, a), (1, b)) for s in runs]
    arms = _without_means((block, arm) for block, arm, _ in rows)
    values = _without_means((block, value) for block, _, value in rows)
    weight = sum(x * x for x in arms)
    df = len(rows) - len({block for block, _, _ in rows}) - 1
    if not weight or df < 1:
        return None
    ratio = sum(x * y for x, y in zip(arms, values, strict=True)) / weight
    rest = sum((y - ratio * x) ** 2 for x, y in zip(arms, values, strict=True))
    deviation = sqrt(rest / df)
    return MeasuredEffect(ratio, deviation / sqrt(weight), df, deviation, (len(a), len(b)), in_blocks=True)


def _without_means(samples: Iterable[tuple[int | None, float]]) -> list[float]:
    found = list(samples)
    blocks: dict[int | None, list[float]] = defaultdict(list)
    for block, value in found:
        blocks[block].append(value)
    means = {block: fmean(values) for block, values in blocks.items()}
    return [value - means[block] for block, value in found]


def with_runs(effect: MeasuredEffect, each: int, block_runs: int) -> MeasuredEffect:
    """The same ratio and spread if each arm had `each` runs in blocks of `block_runs`."""
    blocks = -(-2 * each // block_runs) if effect.in_blocks else 1
    df = 2 * each - blocks - 1
    error = effect.deviation * sqrt(2 / each) if df > 0 else inf  # of a difference of two means
    return effect._replace(error=error, df=max(df, 1), runs=(each, each))


@cache
def t_quantile(probability: float, df: float) -> float:
    """The value below which a t of `df` degrees of freedom (> 0, need not be whole) lies with `probability` (≥ ½)."""
    low, high = 0.0, 1.0
    while t_below(high, df) < probability and high < _LARGEST:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_below(middle, df) < probability else (low, middle)
    return high


def t_below(t: float, df: float) -> float:
    """The probability that a t of `df` degrees of freedom lies below `t`.

    Source: Abramowitz & Stegun 26.7.1, by the incomplete beta function.
    """
    beyond = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t))
    return 1 - beyond if t > 0 else beyond


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised I_x(a, b), by its continued fraction (DLMF 8.17.22) on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), by Lentz's method."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for n in range(1, _MOST_TERMS):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + d * denominator or _TINY)
        numerator = 1 + d / numerator or _TINY
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < _PRECISION:
            break
    return value
