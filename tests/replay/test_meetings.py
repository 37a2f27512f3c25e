"""Which receives belong to which sends, and which waiting belongs to which collective."""

from __future__ import annotations

import numpy as np
import pytest

from harness.replay.graph.collectives import (
    CollectiveNodes,
    CollectiveSync,
    MatchedCollectives,
    done_after,
    ended_together,
)
from harness.replay.graph.graph import Call

MS = 1_000_000
ROWS = np.arange(20)


def nodes(name: str, first: int) -> CollectiveNodes:
    return CollectiveNodes((name, None), first + ROWS, first + len(ROWS) + ROWS)


@pytest.mark.parametrize(("begin_ms", "after_ns"), [(0, 2 * MS), (1, 2 * MS), (5, 1 * MS), (9, None)], ids=str)
def test_receives_that_end_before_their_sends_begin_are_not_theirs(begin_ms: int, after_ns: int | None) -> None:
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


@pytest.mark.parametrize(("arrived_ms", "joined_ns"), [(0, [-MS // 2, MS]), (199, [MS])])
def test_a_process_that_goes_on_just_before_the_last_one_arrived_has_waited_for_it(
    arrived_ms: int, joined_ns: list[int]
) -> None:
    """By a record that is half a millisecond late: of a long wait that is nothing, of a short one it is too much."""
    time = np.array([arrived_ms, 200, 199.5, 201]) * MS
    meetings = CollectiveSync()
    meetings.add_nodes(time.astype(np.int64))
    one = np.zeros(1, np.int64)
    shared = MatchedCollectives([0, 1], np.zeros((2, 1), np.int64), one, [Call("all_reduce", 0)])
    meetings.join(shared, np.array([[0], [1]]), np.array([[2], [3]]))
    assert meetings.messages().ns.tolist() == joined_ns
    assert meetings.alone_count == 2 - len(joined_ns)


def test_collectives_without_a_group_belong_together_where_they_end_together() -> None:
    """The longer one of them waited, the later a record may be."""
    ends = np.array([10, 500, 900, 1300]) * MS
    later = ends + np.array([MS // 4, 6 * MS, 6 * MS, 0])
    waited = np.array([1 * MS, 400 * MS, 10 * MS, MS // 10])
    time = np.concatenate([ends - waited, ends, later - MS // 10, later])
    rows = np.arange(4)
    found = ended_together(
        time,
        [CollectiveNodes(("a", None), rows, rows + 4), CollectiveNodes(("b", None), rows + 8, rows + 12)],
        rows,
        rows,
    )
    assert [each.tolist() for each in found] == [[0, 1], [0, 1]]
