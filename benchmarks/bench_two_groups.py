"""How often the rule of two groups (harness/analysis/two_groups.py) is wrong, and how often it is right.

    python benchmarks/bench_two_groups.py [--samples 5000] [--points]

The first table: the share of equal arms that are called two groups, for each number of runs and shape. The second: the
share of planted groups of 2.5 and 4.1 s that are found. `--points` prints the 98 % points from which the critical
values are taken."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.analysis.two_groups import FEWEST, best_split, upper_group
from harness.compare.comparison import MOST_RUNS

RUNS = (*range(FEWEST, 15), 16, 18, 19, 24, 32, 48, MOST_RUNS)
PLANTED = (log(2.5), log(4.1))
NOISE = (0.01, 0.02, 0.03, 0.05)
SPREAD = 0.05  # of one run of an equal arm, as a share
ALLOWED = 0.02
Arms = NDArray[np.float64]
Random = np.random.Generator


def _outliers(random: Random, size: tuple[int, int]) -> Arms:
    """One run in twenty is slower, by ten standard deviations on average."""
    return random.standard_normal(size) + 10 * (random.random(size) < 0.05) * random.standard_exponential(size)


def _drift(deviations: float) -> Callable[[Random, tuple[int, int]], Arms]:
    return lambda random, size: random.standard_normal(size) + np.linspace(0, deviations, size[1])


SHAPES: dict[str, Callable[[Random, tuple[int, int]], Arms]] = {
    "normal": lambda random, size: random.standard_normal(size),
    "t, 3 df": lambda random, size: random.standard_t(3, size),
    "outliers": _outliers,
    "exponential": lambda random, size: random.standard_exponential(size),
    "uniform": lambda random, size: random.random(size) * 12**0.5,
    "drift 3 σ": _drift(3),
    "drift 10 σ": _drift(10),
}


def false_share(arms: Arms) -> str:
    """Of equal arms, those that are called two groups."""
    return f"{np.mean([upper_group(arm) is not None for arm in (SPREAD * arms).tolist()]):.2%}"


def point(arms: Arms) -> str:
    """The 98 % point of the statistic."""
    return f"{np.quantile([best_split(arm)[0] for arm in arms.tolist()], 1 - ALLOWED):.2f}"


def found_share(random: Random, split: tuple[int, int], noise: float, samples: int) -> str:
    """Of arms with two planted groups, those of which each run is put into its own."""
    upper = np.repeat([False, True], split)
    arms = random.normal(np.where(upper, PLANTED[1], PLANTED[0]), noise, (samples, len(upper)))
    return f"{np.mean([upper_group(arm) == upper.tolist() for arm in arms.tolist()]):.1%}"


def splits(runs: int) -> list[tuple[int, int]]:
    """The most unequal groups that are looked for, and equal ones."""
    smallest = max(2, -(-runs // 6))
    return [(smaller, runs - smaller) for smaller in sorted({smallest, runs // 2})]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5000, help="arms of each kind")
    parser.add_argument("--points", action="store_true", help="the points in place of the shares")
    asked = parser.parse_args()
    random = np.random.default_rng(1)
    print("\t".join(["runs", *SHAPES]))
    for runs in RUNS:
        arms = [draw(random, (asked.samples, runs)) for draw in SHAPES.values()]
        print("\t".join([str(runs), *map(point if asked.points else false_share, arms)]), flush=True)
    if asked.points:
        return
    print("\t".join(["\nfast + slow", *(f"noise {noise:.0%}" for noise in NOISE)]))
    for split in (split for runs in (4, 5, 6, 7, 8, 10, 12, 16, 32, MOST_RUNS) for split in splits(runs)):
        shares = [found_share(random, split, noise, asked.samples // 5) for noise in NOISE]
        print("\t".join([f"{split[0]} + {split[1]}", *shares]), flush=True)


if __name__ == "__main__":
    main()
