"""Two groups among an arm's runs: planted ones are found, equal arms and one outlier are no groups, and only a fact
that separates them is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import log

import pytest

from harness.analysis.two_groups import upper_group

TIMES = 300
Draw = Callable[[random.Random, int], float]


def logs(*values: float) -> list[float]:
    return [log(value) for value in values]


SHAPES: dict[str, Draw] = {
    "normal": lambda dice, _: dice.gauss(0, 1),
    "heavy tails": lambda dice, _: dice.gauss(0, 1) / (dice.gammavariate(1.5, 2) / 3) ** 0.5,
    "outliers": lambda dice, _: dice.gauss(0, 1) + (dice.random() < 0.05) * dice.expovariate(0.1),
    "exponential": lambda dice, _: dice.expovariate(1),
    "uniform": lambda dice, _: 3 * dice.random(),
    "drift": lambda dice, run: dice.gauss(0, 1) + run,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [4, 5, 8, 12, 16, 64])
def test_equal_arms_are_seldom_called_two_groups(shape: str, runs: int) -> None:
    dice = random.Random(1)
    arms = [[0.05 * SHAPES[shape](dice, run) for run in range(runs)] for _ in range(TIMES)]
    assert sum(upper_group(arm) is not None for arm in arms) <= 0.04 * TIMES


@pytest.mark.parametrize(
    ("fast", "slow", "noise"),
    [(2, 2, 0.01), (3, 2, 0.01), (3, 3, 0.03), (2, 6, 0.03), (3, 5, 0.03), (4, 4, 0.03), (6, 2, 0.03), (32, 32, 0.05)],
)
def test_planted_groups_are_found(fast: int, slow: int, noise: float) -> None:
    dice = random.Random(1)
    arms = [[dice.gauss(log(2.5 if run < fast else 4.1), noise) for run in range(fast + slow)] for _ in range(TIMES)]
    expected = [False] * fast + [True] * slow
    assert sum(upper_group(arm) == expected for arm in arms) >= 0.9 * TIMES


@pytest.mark.parametrize(
    "one",
    [
        (2.5, 2.51, 2.52, 2.49, 2.5, 2.51, 2.48, 4.1),  # an outlier
        (4.1, 4.11, 4.12, 4.09, 4.1, 2.5),
        (2.5, 2.5, 4.1),  # too few
        (2.5, 2.9, 4.1, 4.6),
        (100, 100, 100, 100.5, 100.5, 100.5),  # a clock that rounds
        (1, 1, 1, 1),
        (2.5, 2.6, 2.8, 3.0, 3.3, 3.6, 3.9, 4.1),
        (*[2.5 + run / 1000 for run in range(13)], 4.1, 4.11),  # less than a sixth
    ],
)
def test_one_group_is_one(one: tuple[float, ...]) -> None:
    assert upper_group(logs(*one)) is None


def test_each_run_is_in_its_group_whatever_the_order() -> None:
    times = (4.1, 2.5, 4.0, 2.52, 4.1, 4.12, 2.49, 4.05)
    assert upper_group(logs(*times)) == [each > 3 for each in times]
    assert upper_group(logs(3, 3, 4, 4)) == [False, False, True, True]
