"""Sets of intervals agree with sets of points, and the split conserves every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.idle import COMMUNICATION, COMPUTE, MEMORY, NOT_WORK, Busy, busy, split_windows
from harness.analysis.process.intervals import (
    Intervals,
    clip,
    complement,
    difference,
    intersection,
    lanes,
    length,
    lengths_within,
    merge,
    union,
)

LINE = 60
spans = st.lists(st.tuples(st.integers(0, LINE), st.integers(0, LINE)), max_size=12)
classed = st.lists(
    st.tuples(st.integers(0, LINE), st.integers(1, 20), st.sampled_from([COMPUTE, COMMUNICATION, MEMORY, NOT_WORK])),
    min_size=1,
    max_size=15,
)
windows = st.tuples(st.integers(-5, LINE), st.integers(1, LINE)).map(lambda w: (w[0], w[0] + w[1]))


def set_of(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64))


def points(a: Intervals) -> set[int]:
    return {t for s, e in zip(a.start.tolist(), a.end.tolist(), strict=True) for t in range(s, e)}


def points_of(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for s, e in pairs for t in range(s, e)}


def is_a_set(a: Intervals) -> bool:
    return bool((a.end > a.start).all() and (a.start[1:] > a.end[:-1]).all())


@given(spans)
def test_a_union_covers_exactly_the_points_of_its_intervals_and_is_disjoint(pairs: list[tuple[int, int]]) -> None:
    found = set_of(pairs)
    assert is_a_set(found)
    assert points(found) == points_of(pairs)
    assert length(found) == len(points_of(pairs))


@given(spans, spans)
def test_intersection_difference_and_merge_are_those_of_the_points(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    a, b = set_of(first), set_of(second)
    assert points(intersection(a, b)) == points(a) & points(b)
    assert points(difference(a, b)) == points(a) - points(b)
    assert points(merge(a, b)) == points(a) | points(b)


@given(st.lists(st.tuples(st.integers(0, LINE), st.integers(1, 20), st.integers(0, 1)), max_size=12))
def test_an_interval_has_the_lowest_lane_that_is_free_in_its_group(given_spans: list[tuple[int, int, int]]) -> None:
    spans = sorted((start, start + length, group) for start, length, group in given_spans)
    found = lanes(*(np.array([each[part] for each in spans], np.int64) for part in range(3)))
    for at, (start, _, group) in enumerate(spans):
        taken = {found[i] for i in range(at) if spans[i][1] > start and spans[i][2] == group}
        assert found[at] == min(set(range(at + 1)) - taken)


@given(spans, windows)
def test_clip_and_complement_share_a_window_between_them(pairs: list[tuple[int, int]], window: tuple[int, int]) -> None:
    a, inside = set_of(pairs), set(range(*window))
    assert points(clip(a, *window)) == points(a) & inside
    assert points(complement(a, *window)) == inside - points(a)


@given(spans, st.lists(windows, min_size=1, max_size=6))
def test_lengths_within_windows_count_points_even_where_windows_overlap(
    pairs: list[tuple[int, int]], several: list[tuple[int, int]]
) -> None:
    a = set_of(pairs)
    found = lengths_within(a, np.array([w[0] for w in several]), np.array([w[1] for w in several]))
    assert found.tolist() == [len(points(a) & set(range(*w))) for w in several]


def brute(events: list[tuple[int, int, int]], window: tuple[int, int]) -> dict[str, int]:
    inside = set(range(*window))
    of = {c: {t for s, d, k in events if k == c for t in range(s, s + d)} & inside for c in range(4)}
    work = of[COMPUTE] | of[COMMUNICATION] | of[MEMORY]
    return {
        "window_ns": len(inside),
        "compute_ns": len(of[COMPUTE]),
        "communication_ns": len(of[COMMUNICATION]),
        "exposed_communication_ns": len(of[COMMUNICATION] - of[COMPUTE]),
        "overlapped_communication_ns": len(of[COMMUNICATION] & of[COMPUTE]),
        "memory_ns": len(of[MEMORY]),
        "exposed_memory_ns": len(of[MEMORY] - of[COMPUTE] - of[COMMUNICATION]),
        "idle_ns": len(inside - work),
    }


def sets_of(events: list[tuple[int, int, int]]) -> Busy:
    start = np.array([s for s, _, _ in events], np.int64)
    end = np.array([s + d for s, d, _ in events], np.int64)
    return busy(start, end, np.array([k for _, _, k in events], np.uint8))


@given(classed, st.lists(windows, min_size=1, max_size=5))
def test_the_split_of_each_window_equals_counting_nanoseconds_one_by_one(
    events: list[tuple[int, int, int]], several: list[tuple[int, int]]
) -> None:
    starts, ends = (np.array([w[i] for w in several]) for i in (0, 1))
    found = split_windows(sets_of(events), starts, ends)
    assert [split.model_dump() for split in found] == [brute(events, window) for window in several]
