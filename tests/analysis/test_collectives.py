"""The same collective is found on every rank; waiting and transfer are separated, also across clocks that
disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.analysis.job.matching import _agreement
from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import CollectivePhase, RankSteps, RankTraining, Steps, Summary, Window
from harness.traces.trace import Activity
from tests.analysis.measuring import a_rank, summary_of
from tests.synthetic.columns import Made

MB, MS = 1 << 20, 10**6
EPOCH_NS = 1_735_689_600_123_456_789
KINDS = ("all_reduce", "broadcast")
Spans = list[tuple[int, int]]


def rank(number: int, spans: Spans, world: int = 2, clock: str = "node0", **more: Any) -> Made:
    """One rank that takes part in all-reduces of 1 MB at the given spans."""
    made = a_rank(number, world, clock)
    for start, end in spans:
        made.collective(start, end, **({"size": MB, "members": world} | more))
    return made


def job(*ranks: Made, window: Window = Window.GPU) -> Summary:
    return summary_of(*ranks, window=window)


def every(count: int, late: int = 0, ahead: int = 0, lasts: int = 100) -> Spans:
    """A collective in each µs."""
    return [(i * 1000 + late + ahead, i * 1000 + lasts + ahead) for i in range(count)]


def sized(number: int, first: int, late: int = 0, ahead: int = 0, clock: str = "node0") -> Made:
    """Five steps from `first` on, each with a message of its own size."""
    made = rank(number, [], clock=clock)
    for i in range(first, first + 5):
        made.collective(i * 1000 + late + ahead, i * 1000 + 100 + ahead, size=MB + i, members=2)
    return made


def at_once(number: int) -> Made:
    """Two gathers at the same time: the order in which a thread begins them is random."""
    made = rank(number, every(9))
    for size, start in ((MB + 1, 10_000), (MB + 2, 10_001)) if number else ((MB + 2, 10_000), (MB + 1, 10_001)):
        made.collective(start, 10_090 + 10 * (size - MB), size=size, members=2)
    return made


def of_one_report() -> Made:
    """Two processes of a report of nsys, which knows no rank."""
    made = Made(source="nsys", path="node0.sqlite", world_size=2)
    for pid, late in ((10, 0), (20, 40)):
        made.collective(late, 100, size=MB, members=2)
        made.events[-1]["process"] = pid
    return made


def without_group(number: int, world: int = 3, at: int = 0) -> Made:
    made = rank(number, [(at, at + 100)], world, members=-1)
    made.collectives[0]["group"] = -1
    return made


SHARED = sum(MB + i for i in range(1, 5))
LATER = [(s + 20, e) for s, e in every(6)[2:]]
ROW: dict[str, tuple[list[Made], dict[str, Any]]] = {
    "waiting is what a rank spends beyond the fastest": (
        [rank(0, [(0, 100), (200, 300)]), rank(1, [(80, 100), (200, 300)])],
        {"count": 2, "ranks": 2, "duration_ns": 320, "waiting_ns": 80, "transfer_ns": 240, "mean_start_skew_ns": 40,
         "last_arrivals": {0: 1, 1: 1}}),
    "bandwidth is bytes over the transfer, with the bus factor of nccl-tests": (
        [rank(0, [(0, 100)]), rank(1, [(50, 100)])],
        {"algorithm_bandwidth_gb_per_s": pytest.approx(MB / 50),
         "bus_bandwidth_gb_per_s": pytest.approx(MB / 50 * 2 * (2 - 1) / 2)}),
    "a member was not read": ([rank(0, [(0, 100)], 4), rank(1, [(0, 90)], 4)], {"waiting_ns": None}),
    "a recording that began later": ([rank(0, every(6)), rank(1, LATER)], {"count": 4, "waiting_ns": 4 * 20}),
    "recordings of equal length, a step apart": (
        [rank(0, every(6)[:5]), rank(1, every(6, 20)[1:])], {"count": 4, "waiting_ns": 4 * 20}),
    "the same, paired by what they moved": (
        [sized(0, 0), sized(1, 1, 30)], {"count": 4, "bytes": SHARED, "waiting_ns": 4 * 30}),
    "the same, on another clock": (
        [sized(0, 0), sized(1, 1, 30, 123_456, "node1")], {"count": 4, "bytes": SHARED, "waiting_ns": 4 * 30}),
    "neighbours in another order": ([at_once(0), at_once(1)], {"count": 11, "waiting_ns": 2}),
    "no process knows its rank": ([of_one_report()], {"mean_start_skew_ns": 40, "last_arrivals": {}}),
    # the middle stage of a pipeline exchanges more often than the others; no exchange has all ranks
    "a fused send and receive is each rank's own": (
        [rank(r, [(100 * i, 100 * i + 10) for i in range(r + 1)], 3, kind="send_recv") for r in range(3)],
        {"count": 6, "min_rank_count": 1, "max_rank_count": 3, "bytes": 6 * MB, "waiting_ns": None}),
    "of three ranks without a group two were read": (
        [without_group(0), without_group(1)], {"bus_bandwidth_gb_per_s": None}),
    "of three ranks without a group one was recorded at another time": (
        [without_group(0), without_group(1), without_group(2, at=300)], {"bus_bandwidth_gb_per_s": None}),
}  # fmt: skip
WITHHELD = {
    "a member was not read": ["collectives.waiting_ns", "pop"],
    "of three ranks without a group two were read": ["collectives.bus_bandwidth_gb_per_s"],
    "of three ranks without a group one was recorded at another time": ["collectives.bus_bandwidth_gb_per_s"],
}


@pytest.mark.parametrize("case", ROW)
def test_the_ranks_calls_are_one_row(case: str) -> None:
    ranks, expected = ROW[case]
    found = job(*ranks)
    (row,) = found.collectives
    assert {name: getattr(row, name) for name in expected} == expected
    assert {*WITHHELD.get(case, ())} <= {w.field for w in found.quality.withheld}
    assert case in WITHHELD or not [f for f in found.quality.problems if "matched" in f.what]


def with_type(dtype: str) -> Made:
    made = rank(1, [(0, 100), (200, 300)])
    for row in made.collectives:
        row["dtype"] = made.name(dtype)
    return made


@pytest.mark.parametrize(
    "other",
    [
        rank(1, [(0, 100)]).collective(200, 300, "broadcast", size=8, members=2),
        rank(1, [(0, 100), (200, 300)], size=2 * MB),
        with_type("float32"),
    ],
)
def test_collectives_of_other_kinds_sizes_or_types_are_not_forced_to_match(other: Made) -> None:
    found = job(rank(0, [(0, 100), (200, 300)]), other)
    assert all(c.waiting_ns is None for c in found.collectives)
    assert any("cannot be matched" in f.what for f in found.quality.problems)


def test_a_clock_that_is_ahead_is_found_at_the_ends_and_does_not_make_a_rank_late() -> None:
    ahead = 5_000_000
    shifted = [(s + ahead - 60, e + ahead + (1 if i % 3 == 0 else 0)) for i, (s, e) in enumerate(every(9))]
    found = job(rank(0, every(9)), rank(1, shifted, clock="node1"))
    clock = next(c for c in found.clocks if c.host == "node1")
    assert (clock.offset_ns, clock.residual_ns, clock.collectives) == (ahead, 0, 9)
    (row,) = found.collectives
    assert (row.last_arrivals, row.mean_start_skew_ns) == ({0: 9}, 60)


def test_clocks_in_unix_nanoseconds_are_compared_to_the_nanosecond() -> None:
    """At 1.7e18 the resolution of a float64 is 256 ns."""
    ranks = []
    for number, ahead in ((0, 0), (1, 12_345)):
        spans = [(i * 1000 + 71 * number + ahead, i * 1000 + 333 + ahead) for i in range(5)]
        ranks.append(rank(number, spans, clock=f"node{number}"))
        ranks[-1].identity |= {"clock": "trace", "epoch_ns": EPOCH_NS}
    found = job(*ranks)
    assert [(c.offset_ns, c.residual_ns) for c in found.clocks] == [(0, 0), (12_345, 0)]
    assert found.collectives[0].mean_start_skew_ns == 71


def test_a_rank_that_is_always_last_is_a_straggler_with_its_evidence_and_ranks_in_turn_are_none() -> None:
    spans = [every(10, 90 if number == 2 else 0) for number in range(4)]
    (straggler,) = job(*(rank(r, spans[r], 4) for r in range(4))).stragglers
    assert (straggler.rank, straggler.last_arrivals, straggler.collectives) == (2, 10, 10)
    assert straggler.mean_lateness_ns == 90 and "10 of 10" in straggler.evidence
    turns = [[(i * 1000 + (90 if i % 4 == r else 0), i * 1000 + 100) for i in range(12)] for r in range(4)]
    assert job(*(rank(r, turns[r], 4) for r in range(4))).stragglers == []


def stepped(found: Summary, *more: CollectivePhase) -> dict[str, float]:
    """The metrics of a job with a step of each of its two ranks."""
    steps = Steps(source="made", per_rank=[RankSteps(rank=r, durations_ns=[300]) for r in (0, 1)])
    update = {"steps": steps, "collective_phases": [*found.collective_phases, *more]}
    return metrics_by_name(found.model_copy(update=update))


def test_a_ranks_calls_and_bytes_per_step_are_those_of_its_phases_however_many_ranks_were_matched() -> None:
    first, two = [(0, 100), (200, 300)], rank(1, [(0, 100)]).collective(200, 300, "broadcast", size=8, members=2)
    found = job(rank(0, first), two)
    for each in (job(rank(0, first), rank(1, first)), found):
        per_kind = {kind: sum(p.count for p in each.collective_phases if p.kind == kind) / 2 for kind in KINDS}
        assert {kind: stepped(each)[f"{kind}_count"] for kind in KINDS} == per_kind
        assert stepped(each)["all_reduce_bytes"] == per_kind["all_reduce"] * MB
    reduced = next(c for c in found.collectives if c.kind == "all_reduce")
    assert (reduced.count, reduced.min_rank_count, reduced.max_rank_count) == (2, 1, 2)
    unsized = CollectivePhase(kind="all_reduce", phase="optimizer", count=2, bytes=None, duration_ns=2)
    known = stepped(job(rank(0, first), rank(1, first)), unsized)
    assert "all_reduce_bytes" not in known and known["message_bytes"] == 2 * MB


def on_own_nodes(kinds: tuple[str, ...], **of_the_second: int) -> dict[str, float]:
    """Ranks on nodes of their own with ten steps of 1,000 ns, each with a collective of 1 MB."""
    ranks = [a_rank(r, len(kinds), f"node{r}") for r in range(len(kinds))]
    for made, kind in zip(ranks, kinds, strict=True):
        for at in range(0, 10_000, 1000):
            made.step(at, at + 1000, at // 1000).event(at, at + 500, launch_ns=at)
            made.collective(at + 600, at + 800, kind, size=MB, members=len(kinds))
    ranks[1].extra |= of_the_second
    training = [RankTraining(rank=r, node=r) for r in range(len(ranks))]
    return metrics_by_name(job(*ranks, window=Window.STEPS).model_copy(update={"training": training}))


@pytest.mark.parametrize("cut", [{}, {"complete_until_ns": 900}])
def test_a_rank_without_a_counted_step_does_not_swell_what_the_others_do_in_a_step(cut: dict[str, int]) -> None:
    """Its file ends before its first step does."""
    found = on_own_nodes(("all_reduce",) * 2, **cut)
    assert (found["all_reduce_count"], found["all_reduce_bytes"]) == (1, MB)
    assert (found["all_reduce_ns"], found["bytes_across_nodes"]) == (200, MB)


@pytest.mark.parametrize("kinds", [("all_reduce",) * 4, ("send", "recv") * 2])
def test_bytes_across_nodes_are_those_of_one_rank_in_one_step(kinds: tuple[str, ...]) -> None:
    assert on_own_nodes(kinds)["bytes_across_nodes"] == MB


@pytest.mark.parametrize(
    ("times", "line", "why"),
    [
        ({1000: 1500, 2000: 2000, 3000: 2500}, (1000, 0.5), None),
        ({1000: 2000, 2000: 10_000, 3000: 4000}, (None, None),
         "its 3 message sizes do not lie on a straight line (R² 0.06, at least 0.9 is needed)"),
        ({1000: 5000, 2000: 4000, 3000: 3000}, (None, None), "its times do not grow with the message size"),
    ],
)  # fmt: skip
def test_latency_and_bandwidth_are_a_line_through_the_sizes_or_withheld(times: Any, line: Any, why: str | None) -> None:
    made, begin = Made(rank=0, world_size=1), 0
    for size, ns in times.items():
        made.collective(begin, begin + ns, size=size, members=1)
        begin += 2 * ns
    found = job(made)
    (fit,) = found.collective_fits
    assert (fit.points, fit.alpha_ns, fit.beta_ns_per_byte) == (
        3,
        *(x if x is None else pytest.approx(x) for x in line),
    )
    withheld = [(w.field, w.reason) for w in found.quality.withheld if "collective_fits" in w.field]
    reason = f"all_reduce of 1 ranks, waiting included: {why}"
    assert withheld == ([("collective_fits.alpha_ns, beta_ns_per_byte", reason)] if why else [])


def test_times_of_unmatched_ranks_are_marked_as_including_waiting() -> None:
    matched = job(rank(0, [(0, 100)]), rank(1, [(50, 100)]))
    alone = job(rank(0, [(0, 100)]))
    assert [(m.bytes, m.median_transfer_ns, m.includes_waiting) for m in matched.message_sizes] == [(MB, 50, False)]
    assert [(m.bytes, m.median_transfer_ns, m.includes_waiting) for m in alone.message_sizes] == [(MB, 100, True)]


def test_what_agrees_in_no_order_is_refused_before_any_order_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two recordings are compared at every offset: an offset that cannot match must be cheap to refuse."""
    reference = np.arange(400)
    swapped, other = reference.copy(), reference.copy()
    swapped[[100, 101]] = swapped[[101, 100]]
    other[100] = 7
    assert _agreement(reference, swapped) is not None
    monkeypatch.setattr(np, "argsort", lambda *_, **__: pytest.fail("an order was tried"))
    assert _agreement(reference, other) is None


def test_without_a_recorded_group_each_kind_is_matched_by_itself_whatever_their_order() -> None:
    first, second = rank(0, []), rank(1, [])
    for made, order in ((first, (0, 300)), (second, (300, 0))):
        made.event(order[0] + 10, order[0] + 100, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE)
        made.event(order[1] + 40, order[1] + 100, "gloo:all_gather", activity=Activity.CPU_COLLECTIVE)
    found = {c.kind: c for c in job(first, second).collectives}
    assert found["all_reduce"].waiting_ns is None, "one was over before the other began: not the same collective"
    first, second = rank(0, []), rank(1, [])
    for made, late in ((first, 0), (second, 30)):
        made.event(10 + late, 100, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE)
        made.event(11, 90, "gloo:all_gather", activity=Activity.CPU_COLLECTIVE)
    found = {c.kind: c for c in job(first, second).collectives}
    assert (found["all_reduce"].waiting_ns, found["all_gather"].waiting_ns) == (30, 0)


def test_groups_of_the_same_name_and_different_members_stay_apart() -> None:
    ranks = []
    for number in range(4):
        made = rank(number, [(number * 10, 100)], 4, members=2, group="tp")
        made.extra["groups"] = {"tp": [0, 1] if number < 2 else [2, 3]}
        ranks.append(made)
    found = job(*ranks)
    assert sorted(c.waiting_ns for c in found.collectives) == [10, 10]


def test_a_group_of_unknown_size_is_not_taken_for_its_neighbour() -> None:
    made = rank(0, [])
    made.names += ["dp", "tp"]  # numbers side by side
    made.collective(0, 10, group="dp", members=2).collective(20, 30, group="tp", members=-1)
    assert {(c.group, c.group_size) for c in job(made).collectives} == {("dp", 2), ("tp", None)}


def test_a_send_is_counted_but_never_compared_with_a_receive() -> None:
    zero, one = rank(0, [(0, 10)], kind="send"), rank(1, [(0, 90)], kind="recv")
    found = {c.kind: c for c in job(zero, one).collectives}
    assert (found["send"].waiting_ns, found["recv"].waiting_ns) == (None, None)
    assert found["send"].bus_bandwidth_gb_per_s == pytest.approx(MB / 10)


SEVERAL = ["ranks of one host seem to have several clocks: lateness is doubtful"]


@pytest.mark.parametrize(
    ("ahead_ms", "late_ms", "kind", "doubts"),
    [
        *((0, late, "all_reduce", []) for late in (0, 2, 5)),  # they wait for a core
        *((50, 0, kind, SEVERAL) for kind in ("all_reduce", "all_gather", "reduce_scatter")),
        (5, 0, "broadcast", []),  # it may end at its root before it begins elsewhere
    ],
)
def test_a_collective_that_ends_before_it_begins_elsewhere_shows_that_clocks_differ(
    ahead_ms: int, late_ms: int, kind: str, doubts: list[str]
) -> None:
    """Two ranks of one host in short collectives every 20 ms. The second clock is ahead; by turns one of the ranks
    sees late that the collective ended, as on a machine without a free core."""
    made = [rank(number, []) for number in range(2)]
    for i in range(20):
        for number, one in enumerate(made):
            late = late_ms * MS if i % 2 == number else 0
            begin = i * 20 * MS + number * ahead_ms * MS
            one.collective(begin, begin + MS // 10 + late, kind, size=MB + i, members=2)
    assert [f.what for f in job(*made).quality.problems if "clocks" in f.what] == doubts
