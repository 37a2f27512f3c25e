"""Whether the numbers of an arm's runs fall into two groups. Knows numbers only.

The statistic is the gap between the two groups over the standard deviation inside of them, of the split where that is
largest. It is the best split of Engelman and Hartigan 1969 (Percentage points of a test for clusters, J. American
Statistical Association 64) with the gap in place of the distance of the means: the distance alone is also large where
one group is a heavy tail. Hartigan's dip has little power with eight runs.

Their percentage points are those of normal samples. `CRITICAL` is the largest 98 % point of seven shapes of one group:
normal, Student's t with 3 degrees of freedom, normal with 5 % of outliers, exponential, uniform, and normal with a
steady drift of 3 and of 10 standard deviations (150,000 samples of each shape and number of runs, and some 3 % more).
So at most 2 % of equal arms are called two groups; from 13 runs on fewer are, since one value is kept for all of them.
benchmarks/bench_two_groups.py shows both that and how often planted groups are found. Of four runs only groups are
found whose gap is 15 times what the runs of a group differ by.

A group has at least two runs, and a sixth of all: one outlier is none. The spread of the other arm is not pooled with
this one's: where the other arm is the quieter one, each arm that varies more would be called two groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, sqrt
from statistics import fmean

FEWEST = 4  # runs
SMALLEST = 2  # group
SMALLEST_SHARE = 1 / 6
LEAST_GAP = 0.02  # of logarithms: groups that lie nearer are no news, and clocks round times
CRITICAL = {4: 15.5, 5: 11.3, 6: 8.6, 7: 7.3, 8: 6.6, 9: 6.1, 10: 5.7, 11: 5.4, 12: 5.2}
CRITICAL_OF_MORE = 3.8


def upper_group(logs: Sequence[float]) -> list[bool] | None:
    """Of each run whether it is in the upper group; None: it is one group, or there are too few runs to tell.
    logs: the natural logarithm of each run's number."""
    if len(logs) < FEWEST:
        return None
    separation, size = best_split(logs)
    ordered = sorted(logs)
    if ordered[size] - ordered[size - 1] < LEAST_GAP or separation <= CRITICAL.get(len(logs), CRITICAL_OF_MORE):
        return None
    return [each >= ordered[size] for each in logs]


def best_split(numbers: Sequence[float]) -> tuple[float, int]:
    """The largest separation of at least four numbers in two, and how many are in the lower part."""
    ordered = sorted(numbers)
    smallest = max(SMALLEST, ceil(len(ordered) * SMALLEST_SHARE))
    return max((_separation(ordered, size), size) for size in range(smallest, len(ordered) - smallest + 1))


def _separation(ordered: Sequence[float], size: int) -> float:
    gap = ordered[size] - ordered[size - 1]
    inside = sum(_squares(part) for part in (ordered[:size], ordered[size:]))
    if not inside:
        return inf if gap else 0.0
    return gap / sqrt(inside / (len(ordered) - 2))


def _squares(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return sum((each - mean) ** 2 for each in numbers)
