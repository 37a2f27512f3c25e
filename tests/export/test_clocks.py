"""Ranks of several nodes are drawn on one clock, even where the nodes' own clocks disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Window
from harness.export.objects import build_object_model, offsets_ns
from harness.traces.trace import Trace
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import event, trace

BASE, MS = 1_700_000_000_000_000_000, 1_000_000


def rank(
    number: int, host: str, ahead_ns: int, *, jitter: int = 0, steps: int = 12, kind: str = "all_reduce",
    members: Sequence[int] = (),
) -> Trace:  # fmt: skip
    """A rank whose all-reduces end every millisecond, on a clock that is `ahead_ns` ahead. members: of its group."""
    noise = np.random.default_rng(number).integers(-jitter, jitter + 1, steps).tolist()
    ends = [BASE + MS * (step + 1) + ahead_ns + noise[step] for step in range(steps)]
    events = [event("ncclKernel", end - 50_000 * (number + 1), end) for end in ends]
    calls = [{"event": i, "kind": kind, "bytes": 4096 + i, "group": "dp"} for i in range(steps)]
    made = trace(events, collectives=calls, rank=number, host=host)
    return replace(made, groups={"dp": list(members)}) if members else made


class Ranks(NamedTuple):
    """Traces, what is added to their times, and the one note on it, if there is one. near: by which it may differ."""

    traces: list[Trace]
    offsets: list[int]
    note: str = ""
    is_unix: bool = True
    near: int = 0


FIRST, NOT_COMPARED = rank(0, "a", 0), "the clocks of b and a cannot be compared"
UNDATED = [[trace([event("x", at, at + length)], clock="trace") for at in starts]
           for starts, length in (((100, 900), 5), ((100, 300), 500))]  # fmt: skip
CASES = {
    "a node that is ahead is shifted back": Ranks(
        [rank(0, "a", 0, jitter=2_000), rank(1, "b", 740_000, jitter=2_000)], [0, -740_000],
        "µs ahead of that of a", near=3_000,
    ),
    "a node that is behind is shifted with all its ranks": Ranks(
        [FIRST, rank(1, "b", -5 * MS), rank(2, "b", -5 * MS)], [0, 5 * MS, 5 * MS], "µs behind that of a"
    ),
    "ranks of one node share its clock": Ranks([FIRST, rank(1, "a", 900_000)], [0, 0]),
    "a difference within the noise is left alone": Ranks(
        [rank(0, "a", 0, jitter=500_000), rank(1, "b", 10_000, jitter=500_000)], [0, 0]
    ),
    "too few collectives are not compared": Ranks([FIRST, rank(1, "b", MS, steps=2)], [0, 0], NOT_COMPARED),
    "other collectives are not compared": Ranks([FIRST, rank(1, "b", MS, kind="broadcast")], [0, 0], NOT_COMPARED),
    "a recording that ended earlier is compared by what both have": Ranks(
        [FIRST, rank(1, "b", MS, steps=5)], [0, -MS], "by the ends of 5 collectives"
    ),
    # Both nodes call the group of their own two ranks "dp"; the collectives of the two groups are independent.
    "groups that share a name are separated by their members": Ranks(
        [rank(0, "a", 0, members=[0, 1]), rank(2, "b", 3 * MS, members=[2, 3])], [0, 0], NOT_COMPARED
    ),
    "a node is compared through another": Ranks(
        [rank(0, "a", 0, members=[0, 1]), rank(1, "b", 500_000, members=[0, 1]),
         rank(1, "b", 500_000, members=[1, 2]), rank(2, "c", 800_000, members=[1, 2])],
        [0, -500_000, -500_000, -800_000], "the clock of c is 800.0 µs ahead",
    ),
    "undated traces that do not overlap start together": Ranks(UNDATED[0], [-100, -900], "do not record when", False),
    "undated traces that overlap stay as they are": Ranks(UNDATED[1], [0, 0], is_unix=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_times_of_several_traces_are_put_on_one_clock(name: str) -> None:
    traces, expected, note, is_unix, near = CASES[name]
    offsets, unix, notes = offsets_ns(traces)
    assert offsets == pytest.approx(expected, abs=near)
    assert unix == is_unix
    assert bool(notes) == bool(note) and note in "; ".join(notes)


def test_the_exports_and_the_summary_agree_on_a_clock() -> None:
    traces = [rank(0, "a", 0, jitter=2_000), rank(1, "b", 740_000, jitter=2_000)]
    parts = [part for one in traces for part in measure_trace(one, Window.GPU, load_rules())]
    (_, offset), _, (note,) = offsets_ns(traces)
    assert {clock.host: -clock.offset_ns for clock in summarise_job(parts).clocks} == {"a": 0, "b": offset}
    assert build_object_model(traces).notes == [note]
