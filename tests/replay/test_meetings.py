"""Which receives may belong to which sends."""

from __future__ import annotations

import numpy as np
import pytest

from harness.replay.meetings import Nodes, done_after

MS = 1_000_000
ROWS = np.arange(20)


def nodes(name: str, first: int) -> Nodes:
    return Nodes((name, None), first + ROWS, first + len(ROWS) + ROWS)


@pytest.mark.parametrize(
    ("begin_ms", "after_ns"), [(0, 2 * MS), (1, 2 * MS), (5, 1 * MS), (9, None)], ids=str
)
def test_receives_that_end_before_their_sends_begin_are_not_theirs(
    begin_ms: int, after_ns: int | None
) -> None:
    """Each 10 ms a receive from 4 ms to 6 ms; the sends begin before, meanwhile or afterwards."""
    each = ROWS * 10 * MS
    time = np.concatenate([each + begin_ms * MS, each + 7 * MS, each + 4 * MS, each + 6 * MS])
    found = done_after(time, nodes("a", 0), ROWS, nodes("b", 40), ROWS)
    assert found == after_ns


def test_a_record_may_be_late() -> None:
    """One send of twenty seems to begin after its receive ended, on a thread that waited for a core."""
    each = ROWS * 10 * MS
    begin = each + 5 * MS
    begin[3] += 3 * MS
    time = np.concatenate([begin, each + 7 * MS, each + 4 * MS, each + 6 * MS])
    assert done_after(time, nodes("a", 0), ROWS, nodes("b", 40), ROWS) == 1 * MS
