"""The first and the last collective of a window may wait for a rank's profiler. A rank that is late by its own work is
never taken for that."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.metric_values import waiting_share
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.part import RankPart
from harness.analysis.summary import Problem, RecordingVerdict, Summary, Window
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import Made

RULES = load_rules()
RANKS = 4
US = 1000
STEP, WAIT, TRANSFER = 20_000 * US, 7_000 * US, 100 * US
BY = 6_900 * US  # how late rank 2 is
JITTER = 30 * US
WHAT = "ranks wait for another rank's profiler to start or stop"
Start = tuple[int, int]  # step, and which of its two collectives


def rank(
    number: int, steps: int, late: dict[Start, int], marks: dict[int, int], *, tail: int = 0, ahead: int = 0
) -> Made:
    """Steps of 20 ms with collectives at 3 ms and 11 ms, which end 7.1 ms later, on all ranks at once.

    `late`: how late this rank arrives. `marks`: how late the step's mark begins. `tail`: of all marks.
    `ahead`: its clock's, on a host of its own.
    """
    made = Made(rank=number, world_size=RANKS, path=f"rank{number}.json", clock="unix")
    made.identity["host"] = f"n{number}" if ahead else "n"
    for i in range(steps):
        zero = i * STEP + ahead
        begin = zero + marks.get(i, 0) + tail
        made.step(begin, zero + STEP + marks.get(i + 1, 0) + tail, i)
        made.event(begin, begin + US, launch_ns=begin)
        for which, at in enumerate((3_000 * US, 11_000 * US)):
            start = zero + at
            made.collective(start + late.get((i, which), 0), start + WAIT + TRANSFER, size=1 << 20, members=RANKS)
    return made


def parts(
    late: dict[Start, int],
    marks: dict[int, int] | None = None,
    *,
    steps: int = 5,
    window: Window = Window.STEPS,
    tail: int = 0,
    ahead: int = 0,
    cut: bool = False,
) -> list[RankPart]:
    """Rank 2 is late; else the ranks take turns to arrive 30 µs later than they should.
    `cut`: a collective before the first step and one after the last are recorded too."""
    found = []
    for r in range(RANKS):
        turns = [(i, w) for i in range(steps) for w in (0, 1) if (2 * i + w) % RANKS == r]
        jitter = {start: JITTER for start in turns if start not in late}
        own = jitter | late if r == 2 else jitter
        made = rank(r, steps, own, marks or {}, tail=tail, ahead=ahead) if r == 2 else rank(r, steps, own, {})
        for at in (-5_000 * US, steps * STEP + 9_000 * US) if cut else ():
            made.collective(at + 1, at + TRANSFER, size=1 << 20, members=RANKS)
        found += measure_trace(made.trace(), window, RULES)
    return found


def job(late: dict[Start, int], marks: dict[int, int] | None = None, **more: Any) -> Summary:
    return summarise_job(parts(late, marks, **more))


def of_profiler(s: Summary) -> list[Problem]:
    return [f for f in s.quality.problems if f.what == WHAT]


def test_a_profiler_that_starts_late_makes_no_straggler_and_no_waiting() -> None:
    """Rank 2's window begins late, and it is as late at the first collective, and at no other."""
    s = job({(0, 0): BY}, {0: BY})
    (row,) = s.collectives
    assert row.profiler_ns == BY * (RANKS - 1)
    assert row.waiting_ns == JITTER * (RANKS - 1) * 9, "the other nine"
    assert row.transfer_ns == row.duration_ns - row.waiting_ns - row.profiler_ns
    assert row.mean_start_skew_ns == JITTER and sum(row.last_arrivals.values()) == 9
    assert waiting_share(s) == row.waiting_fraction
    assert row.count == 10 and row.duration_ns == sum(p.duration_ns for p in s.collective_phases), "nothing is lost"
    assert s.stragglers == []
    (finding,) = of_profiler(s)
    assert finding.evidence.startswith(
        "first all_reduce of the window: starts 6.90 ms apart, as the windows' are (6.90 ms), ends 0.00 ms, "
        "other starts at most 0.03 ms. Its waiting, 20.70 ms of all ranks (5.3 % of their windows), is left out"
    )


FIRST, LAST = {(0, 0): BY}, {(4, 1): BY}
SAID: dict[str, tuple[dict[Start, int], dict[int, int], dict[str, Any], RecordingVerdict | None]] = {
    "the first": (FIRST, {0: BY}, {}, RecordingVerdict.DOUBTFUL),
    "less than a twentieth of the windows": ({(0, 0): 2_000 * US}, {0: 2_000 * US}, {}, RecordingVerdict.GOOD),
    "less than a hundredth": ({(0, 0): 400 * US}, {0: 400 * US}, {}, None),
    "rank 2's host is 5 s ahead": (FIRST, {0: BY}, {"ahead": 5_000_000 * US}, RecordingVerdict.DOUBTFUL),
    "collectives before the window": (FIRST, {0: BY}, {"cut": True}, None),
    "the last alone is a profiler's stop": (LAST, {}, {}, RecordingVerdict.DOUBTFUL),
    "collectives after the window": (LAST, {}, {"cut": True}, None),
    "one other does not show what is usual": (FIRST, {0: BY}, {"steps": 1}, None),
    **{f"late in every one of {n} steps": ({(i, w): BY for i in range(n) for w in (0, 1)}, {}, {"steps": n}, None)
       for n in (1, 2, 5)},
    # as with a slow optimizer: each mark and each first collective of a step are late
    "slow work before each mark": ({(i, 0): BY for i in range(5)}, {}, {"tail": BY}, None),
    # all windows begin together, so the profiler is not the reason, though only the first collective is late
    "waits for its data in the only step": (FIRST, {}, {"steps": 3}, None),
    "the last of two steps may be late by itself": ({(1, 1): BY}, {}, {"steps": 2}, None),
    "late at the last of each step": ({(i, 1): BY for i in range(5)}, {}, {}, None),
    "the extent of work does not say when a profiler started": (FIRST, {0: BY}, {"window": Window.GPU}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_only_a_wait_that_a_profiler_explains_is_told_for_one(case: str) -> None:
    late, marks, more, verdict = SAID[case]
    found = job(late, marks, **more)
    assert [each.severity for each in of_profiler(found)] == [verdict] * (verdict is not None)
    if verdict is not None:
        assert sum(each.profiler_ns for each in found.collectives) == max(late.values()) * (RANKS - 1)


def test_periods_of_a_kernel_do_not_say_when_a_profiler_started() -> None:
    marked = parts(FIRST, {0: BY})
    steps = marked[0].steps.model_copy(update={"source": "periodicity of gemm"})
    assert of_profiler(summarise_job([part.model_copy(update={"steps": steps}) for part in marked])) == []


@pytest.mark.parametrize(("first", "lateness_ns", "count"), [(BY, BY, 10), (1_000 * US, 1_000 * US, 9)])
def test_a_rank_that_is_late_by_itself_is_a_straggler_also_behind_a_profiler(
    first: int, lateness_ns: int, count: int
) -> None:
    late = {(i, w): first for i in range(5) for w in (0, 1)} | FIRST
    s = job(late, {0: BY} if first < BY else {})
    assert len(of_profiler(s)) == 10 - count
    assert [(x.rank, x.last_arrivals, x.collectives) for x in s.stragglers] == [(2, count, count)]
    assert s.stragglers[0].mean_lateness_ns == lateness_ns


def test_ends_that_lie_apart_are_no_common_moment() -> None:
    """A collective that ends on the late rank long after the others is no waiting for a profiler."""
    found = []
    for r in range(RANKS):
        made = rank(r, 5, {(0, 0): BY} if r == 2 else {}, {0: BY} if r == 2 else {})
        if r == 2:
            made.collectives[0]["end_ns"] += 4_000 * US
            made.events[1]["end_ns"] += 4_000 * US
        found += measure_trace(made.trace(), Window.STEPS, RULES)
    assert of_profiler(summarise_job(found)) == []
