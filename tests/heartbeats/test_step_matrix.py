"""The step times of all ranks, by step."""

from __future__ import annotations

import numpy as np

from harness.common.run_folder.heartbeats import encode
from harness.heartbeats.model import History, RankHistory, aligned
from tests.heartbeats.written import beat


def rank(number: int, *entries: tuple[int, int, list[float]]) -> RankHistory:
    """A rank with entries: the first step, how many steps are one entry, and milliseconds."""
    history = History()
    for first, per, ms in entries:
        text = encode([each * 1e3 for each in ms])
        own = encode([each * 500 for each in ms])
        history.take([beat(number, 0)._replace(first=first, per=per, steps=text, own_phase=own)])
    return RankHistory(number, "n0", history=history)


def ms(matrix: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(us) else round(us / 1e3) for us in row] for row in matrix]


def test_columns_are_steps_and_a_mean_stands_for_each_of_its_steps() -> None:
    found = aligned([rank(0, (0, 1, [10, 11, 12, 13, 14, 15])), rank(3, (2, 2, [20, 30])), RankHistory(4, "n0")])
    assert (found.ranks, found.first) == ((0, 3), 0)
    assert ms(found.us) == [[10, 11, 12, 13, 14, 15], [None, None, 20, 20, 30, 30]]
    assert ms(found.own_us)[1] == [None, None, 10, 10, 15, 15]


def test_only_the_last_steps() -> None:
    found = aligned([rank(0, (0, 3, [1, 2, 3, 4])), rank(1, (5, 1, [5, 6, 7]))], most=4)
    assert found.first == 6
    assert ms(found.us) == [[3, 3, 3, 4], [6, 7, None, None]]


def test_steps_that_were_not_recorded_and_steps_that_are_counted_anew() -> None:
    found = aligned([rank(0, (0, 1, [1, 2]), (5, 1, [3, 4])), rank(1, (90, 1, [9, 9]), (2, 1, [5, 6, 7]))])
    assert ms(found.us) == [[1, 2, None, None, None, 3, 4], [None, None, 5, 6, 7, None, None]]


def test_no_step_is_known() -> None:
    assert aligned([RankHistory(0, "n0")]) is None
