"""Runs × runs: the ratio of two commands with its interval, where each run counts once. Knows numbers only.

A run's steps share its nodes, its memory layout and its minutes, so they say little about the next run: the sample is
the run. Logarithms make a ratio a difference, and the spread of times the same at every size. Within blocks of runs
that were made near each other, only differences inside of a block count (two-way layout: Montgomery, Design and
Analysis of Experiments, chapter 4), so that a machine that drifts from block to block moves nothing; ABBA inside of
a block removes what drifts evenly. Without blocks it is Welch's t (Welch 1947), which lets one side vary more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, inf, log, sqrt
from statistics import fmean, variance
from typing import NamedTuple

from harness.analysis.change.student import standard_error_factor, t_quantile

CONFIDENCE = 0.95
POWER = 0.9
FEWEST_RUNS = 2  # of each side


class Sample(NamedTuple):
    """One run's number, > 0, and the block of neighbouring runs in which it was made; None: no block is known."""

    value: float
    block: int | None = None


class Effect(NamedTuple):
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


def effect(a: Sequence[Sample], b: Sequence[Sample]) -> Effect | None:
    """B against A; None where a side has fewer than two runs, or too few to know how much two runs of one side differ.

    Blocks count where every run has one.
    """
    if min(len(a), len(b)) < FEWEST_RUNS:
        return None
    in_blocks = all(sample.block is not None for sample in (*a, *b))
    return _within_blocks(a, b) if in_blocks else _welch(a, b)


def _welch(a: Sequence[Sample], b: Sequence[Sample]) -> Effect:
    logs = [[log(sample.value) for sample in side] for side in (a, b)]
    spread = [variance(side) for side in logs]
    parts = [v / len(side) for v, side in zip(spread, logs, strict=True)]
    error = sqrt(sum(parts))
    free = sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    df = error**4 / free if free else float(len(a) + len(b) - 2)
    ratio = fmean(logs[1]) - fmean(logs[0])
    return Effect(ratio, error, df, sqrt(fmean(spread)), (len(a), len(b)), in_blocks=False)


def _within_blocks(a: Sequence[Sample], b: Sequence[Sample]) -> Effect | None:
    """Least squares of log value = block + side: both without their block's mean (Frisch and Waugh 1933)."""
    rows = [(s.block, side, log(s.value)) for side, runs in ((0, a), (1, b)) for s in runs]
    sides = _without_means((block, side) for block, side, _ in rows)
    values = _without_means((block, value) for block, _, value in rows)
    weight = sum(x * x for x in sides)
    df = len(rows) - len({block for block, _, _ in rows}) - 1
    if not weight or df < 1:
        return None
    ratio = sum(x * y for x, y in zip(sides, values, strict=True)) / weight
    rest = sum((y - ratio * x) ** 2 for x, y in zip(sides, values, strict=True))
    deviation = sqrt(rest / df)
    return Effect(ratio, deviation / sqrt(weight), df, deviation, (len(a), len(b)), in_blocks=True)


def _without_means(rows: Iterable[tuple[int | None, float]]) -> list[float]:
    found = list(rows)
    blocks: dict[int | None, list[float]] = defaultdict(list)
    for block, value in found:
        blocks[block].append(value)
    means = {block: fmean(values) for block, values in blocks.items()}
    return [value - means[block] for block, value in found]


def with_runs(found: Effect, each: int, block_runs: int) -> Effect:
    """The same ratio and spread, had each side had `each` runs in blocks of `block_runs`."""
    blocks = -(-2 * each // block_runs) if found.in_blocks else 1
    df = 2 * each - blocks - 1
    error = found.deviation * standard_error_factor(each, each) if df > 0 else inf
    return found._replace(error=error, df=max(df, 1), runs=(each, each))
