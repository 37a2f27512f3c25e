"""Ranks of several nodes are drawn on one clock, even where the nodes' own clocks disagree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Window
from harness.export.objects import build_object_model, offsets_ns
from harness.traces.trace import Trace
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import event, trace

BASE = 1_700_000_000_000_000_000


def rank(number: int, host: str, ahead_ns: int, *, jitter: int = 0, steps: int = 12, kind: str = "all_reduce") -> Trace:
    """A rank whose all-reduces end every millisecond, on a clock that is `ahead_ns` ahead."""
    noise = np.random.default_rng(number).integers(-jitter, jitter + 1, steps).tolist()
    ends = [BASE + 1_000_000 * (step + 1) + ahead_ns + noise[step] for step in range(steps)]
    events = [event("ncclKernel", end - 50_000 * (number + 1), end) for end in ends]
    calls = [{"event": i, "kind": kind, "bytes": 4096 + i, "group": "dp"} for i in range(steps)]
    return trace(events, collectives=calls, rank=number, host=host)


def test_a_node_whose_clock_is_ahead_is_shifted_back_with_a_note() -> None:
    model = build_object_model([rank(0, "a", 0, jitter=2_000), rank(1, "b", 740_000, jitter=2_000)])
    assert abs(model.tasks[1].offset_ns - model.tasks[0].offset_ns + 740_000) < 3_000
    assert len(model.notes) == 1 and "the clock of b is 7" in model.notes[0] and "ahead of that of a" in model.notes[0]


def test_a_node_that_is_behind_is_shifted_too_with_all_its_ranks() -> None:
    traces = [rank(0, "a", 0), rank(1, "b", -5_000_000), rank(2, "b", -5_000_000)]
    offsets, unix, notes = offsets_ns(traces)
    assert offsets == [0, 5_000_000, 5_000_000] and unix and "behind" in notes[0]


def test_ranks_of_one_node_share_its_clock_and_are_never_shifted() -> None:
    offsets, _, notes = offsets_ns([rank(0, "a", 0), rank(1, "a", 900_000)])
    assert offsets == [0, 0] and notes == []


def test_a_difference_that_does_not_stand_out_of_the_noise_is_left_alone() -> None:
    assert offsets_ns([rank(0, "a", 0, jitter=500_000), rank(1, "b", 10_000, jitter=500_000)])[0] == [0, 0]


def test_without_matching_collectives_the_traces_own_clocks_stand() -> None:
    first = rank(0, "a", 0)
    for other in (
        rank(1, "b", 10**6, steps=2),
        rank(1, "b", 10**6, kind="broadcast"),
        trace([event("x", BASE, BASE + 1)]),
    ):
        assert offsets_ns([first, other])[0] == [0, 0]


def test_a_recording_that_ended_earlier_is_compared_by_what_both_have() -> None:
    offsets, _, (note,) = offsets_ns([rank(0, "a", 0), rank(1, "b", 10**6, steps=5)])
    assert offsets == [0, -(10**6)] and "by the ends of 5 collectives" in note


def test_the_exports_and_the_summary_agree_on_a_clock() -> None:
    traces = [rank(0, "a", 0, jitter=2_000), rank(1, "b", 740_000, jitter=2_000)]
    parts = [part for one in traces for part in measure_trace(one, Window.GPU, load_rules())]
    assert {c.host: -c.offset_ns for c in summarise_job(parts).clocks} == {"a": 0, "b": offsets_ns(traces)[0][1]}


def test_a_node_that_cannot_be_compared_is_named() -> None:
    _, _, (note,) = offsets_ns([rank(0, "a", 0), rank(1, "b", 10**6, steps=2)])
    assert "the clocks of b and a cannot be compared" in note


def test_groups_that_share_a_name_are_separated_by_their_members() -> None:
    """Both nodes call the group of their own two ranks "tp"; the collectives of the two groups are independent."""
    traces = [
        replace(rank(number, host, ahead), groups={"dp": members})
        for number, host, ahead, members in ((0, "a", 0, [0, 1]), (2, "b", 3_000_000, [2, 3]))
    ]
    offsets, _, (note,) = offsets_ns(traces)
    assert offsets == [0, 0] and "cannot be compared" in note


def test_a_node_is_compared_through_another_where_it_shares_nothing_with_the_first() -> None:
    traces = [rank(0, "a", 0), rank(1, "b", 500_000), rank(1, "b", 500_000), rank(2, "c", 800_000)]
    groups = [[0, 1], [0, 1], [1, 2], [1, 2]]
    traces = [replace(one, groups={"dp": members}) for one, members in zip(traces, groups, strict=True)]
    assert offsets_ns(traces)[0] == [0, -500_000, -500_000, -800_000]


def test_undated_traces_that_do_not_overlap_start_together_with_a_note() -> None:
    pair = [trace([event("x", start, start + 5)], clock="trace") for start in (100, 900)]
    offsets, unix, notes = offsets_ns(pair)
    assert offsets == [-100, -900] and not unix and "do not record when" in notes[0]
    near = [trace([event("x", start, start + 500)], clock="trace") for start in (100, 300)]
    assert offsets_ns(near) == ([0, 0], False, [])
