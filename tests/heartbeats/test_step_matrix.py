"""The step times of all ranks, by step."""

from __future__ import annotations

import numpy as np
import pytest

from harness.common.run_folder.heartbeats import encode
from harness.heartbeats.model import PACE_STEPS, History, RankHistory, aligned
from tests.heartbeats.written import beat

Entries = tuple[tuple[int, int, list[float]], ...]


def rank(number: int, entries: Entries) -> RankHistory:
    """A rank with entries: the first step, how many steps are one entry, and milliseconds."""
    history = History()
    for first, per, ms in entries:
        text, own = (encode([each * us for each in ms]) for us in (1e3, 500))
        history.take([beat(number, 0)._replace(first=first, per=per, steps=text, own_phase=own)])
    return RankHistory(number, "n0", history=history)


MATRICES: dict[str, tuple[dict[int, Entries], int, int, list[list[float | None]]]] = {
    "a mean stands for each of its steps": (
        {0: ((0, 1, [10, 11, 12, 13, 14, 15]),), 3: ((2, 2, [20, 30]),), 4: ()}, PACE_STEPS, 0,
        [[10, 11, 12, 13, 14, 15], [None, None, 20, 20, 30, 30]],
    ),
    "only the last steps": (
        {0: ((0, 3, [1, 2, 3, 4]),), 1: ((5, 1, [5, 6, 7]),)}, 4, 6, [[3, 3, 3, 4], [6, 7, None, None]],
    ),
    "steps that were not recorded, and steps that are counted anew": (
        {0: ((0, 1, [1, 2]), (5, 1, [3, 4])), 1: ((90, 1, [9, 9]), (2, 1, [5, 6, 7]))}, PACE_STEPS, 0,
        [[1, 2, None, None, None, 3, 4], [None, None, 5, 6, 7, None, None]],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "most", "first", "ms"), MATRICES.values(), ids=MATRICES)
def test_columns_are_steps(ranks: dict[int, Entries], most: int, first: int, ms: list[list[float | None]]) -> None:
    found = aligned([rank(number, entries) for number, entries in ranks.items()], most=most)
    assert found is not None
    assert (found.ranks, found.first) == (tuple(number for number in ranks if ranks[number]), first)
    for matrix, unit in ((found.us, 1e3), (found.own_us, 500)):
        assert [[None if np.isnan(us) else round(us / unit) for us in row] for row in matrix] == ms


def test_no_step_is_known() -> None:
    assert aligned([RankHistory(0, "n0")]) is None
