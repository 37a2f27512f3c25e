"""The same collective is found on every rank; waiting and transfer are separated, also across clocks that
disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.analysis.job.collective_table import chance_of
from harness.analysis.job.matching import _agreement
from harness.analysis.job.summarise import summarise_job
from harness.analysis.metrics import metrics_by_name
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import CollectivePhase, RankSteps, RankTraining, Steps, Summary, Window
from harness.traces.trace import Activity
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import Made

RULES = load_rules()
MB = 1 << 20
KINDS = ("all_reduce", "broadcast")


def rank(number: int, spans: list[tuple[int, int]], world: int = 2, clock: str = "node0", **more: Any) -> Made:
    """One rank that takes part in all-reduces of 1 MB at the given spans."""
    made = Made(rank=number, world_size=world, path=f"rank{number}.json", host=clock, clock="unix")
    for start, end in spans:
        made.collective(start, end, **({"size": MB, "members": world} | more))
    return made


def job(*ranks: Made, window: Window = Window.GPU) -> Summary:
    return summarise_job([part for made in ranks for part in measure_trace(made.trace(), window, RULES)])


def test_waiting_is_what_a_rank_spends_beyond_the_fastest_of_the_same_collective() -> None:
    found = job(rank(0, [(0, 100), (200, 300)]), rank(1, [(80, 100), (200, 300)]))
    (row,) = found.collectives
    assert (row.count, row.ranks, row.duration_ns) == (2, 2, 320)
    assert (row.waiting_ns, row.transfer_ns) == (80, 240)
    assert row.mean_start_skew_ns == 40
    assert row.last_arrivals == {0: 1, 1: 1}


def test_bandwidth_is_bytes_over_the_transfer_and_the_bus_factor_is_nccl_tests() -> None:
    found = job(rank(0, [(0, 100)]), rank(1, [(50, 100)]))
    (row,) = found.collectives
    assert row.algorithm_bandwidth_gb_per_s == pytest.approx(MB / 50)
    assert row.bus_bandwidth_gb_per_s == pytest.approx(MB / 50 * 2 * (2 - 1) / 2)
    assert [(m.bytes, m.median_transfer_ns) for m in found.message_sizes] == [(MB, 50)]


def test_a_clock_that_is_ahead_is_found_at_the_ends_and_does_not_make_a_rank_late() -> None:
    ahead = 5_000_000
    spans = [(i * 1000, i * 1000 + 100) for i in range(9)]
    shifted = [(s + ahead - 60, e + ahead + (1 if i % 3 == 0 else 0)) for i, (s, e) in enumerate(spans)]
    found = job(rank(0, spans), rank(1, shifted, clock="node1"))
    clock = next(c for c in found.clocks if c.host == "node1")
    assert (clock.offset_ns, clock.residual_ns, clock.collectives) == (ahead, 0, 9)
    (row,) = found.collectives
    assert row.last_arrivals == {0: 9}
    assert row.mean_start_skew_ns == 60


def test_a_rank_that_is_always_last_is_a_straggler_with_its_evidence() -> None:
    late = [(i * 1000 + 90, i * 1000 + 100) for i in range(10)]
    early = [(i * 1000, i * 1000 + 100) for i in range(10)]
    found = job(rank(0, early, 4), rank(1, early, 4), rank(2, late, 4), rank(3, early, 4))
    (straggler,) = found.stragglers
    assert (straggler.rank, straggler.last_arrivals, straggler.collectives) == (2, 10, 10)
    assert straggler.mean_lateness_ns == 90
    assert "10 of 10" in straggler.evidence


def test_ranks_that_take_turns_to_be_last_are_no_stragglers() -> None:
    spans = [[(i * 1000 + (90 if i % 4 == r else 0), i * 1000 + 100) for i in range(12)] for r in range(4)]
    assert job(*(rank(r, spans[r], 4) for r in range(4))).stragglers == []


def test_waiting_is_withheld_when_a_member_was_not_read() -> None:
    found = job(rank(0, [(0, 100)], 4), rank(1, [(0, 90)], 4))
    assert [c.waiting_ns for c in found.collectives] == [None]
    assert [w.field for w in found.quality.withheld] == ["collectives.waiting_ns", "pop"]
    assert any(f.what == "ranks are missing" for f in found.quality.problems)


def test_a_ranks_calls_per_step_are_those_of_its_phases_however_many_ranks_were_matched() -> None:
    two = rank(1, [(0, 100)])
    two.collective(200, 300, "broadcast", size=8, members=2)
    for found in (job(rank(0, [(0, 100), (200, 300)]), rank(1, [(0, 100), (200, 300)])),
                  job(rank(0, [(0, 100), (200, 300)]), two)):  # fmt: skip
        steps = [RankSteps(rank=r, durations_ns=[300]) for r in (0, 1)]
        stepped = found.model_copy(update={"steps": Steps(source="made", per_rank=steps)})
        per_kind = {kind: sum(p.count for p in found.collective_phases if p.kind == kind) / 2 for kind in KINDS}
        assert {kind: metrics_by_name(stepped)[f"{kind}_count"] for kind in KINDS} == per_kind
        assert metrics_by_name(stepped)["all_reduce_bytes"] == per_kind["all_reduce"] * MB
    reduced = next(c for c in found.collectives if c.kind == "all_reduce")
    assert (reduced.count, reduced.min_rank_count, reduced.max_rank_count) == (2, 1, 2)


def test_the_bytes_of_all_messages_are_those_that_are_known() -> None:
    """A small call without a size: its kind has no bytes, and the sum of all bytes does not change."""
    found = job(rank(0, [(0, 100), (200, 300)]), rank(1, [(0, 100), (200, 300)]))
    unsized = CollectivePhase(kind="all_reduce", phase="optimizer", count=2, bytes=None, duration_ns=2)
    steps = Steps(source="made", per_rank=[RankSteps(rank=r, durations_ns=[300]) for r in (0, 1)])
    with_one = {"steps": steps, "collective_phases": [*found.collective_phases, unsized]}
    known = metrics_by_name(found.model_copy(update=with_one))
    assert "all_reduce_bytes" not in known
    assert known["message_bytes"] == 2 * MB


def stepped(number: int, kind: str = "all_reduce", ranks: int = 2, **extra: int) -> Made:
    """One rank on a node of its own with ten steps of 1,000 ns, each with a collective of 1 MB."""
    made = Made(rank=number, world_size=ranks, path=f"rank{number}.json", host=f"node{number}", clock="unix")
    for i in range(10):
        made.step(i * 1000, i * 1000 + 1000, i).event(i * 1000, i * 1000 + 500, launch_ns=i * 1000)
        made.collective(i * 1000 + 600, i * 1000 + 800, kind, size=MB, members=ranks)
    made.extra |= extra
    return made


def on_own_nodes(*ranks: Made) -> dict[str, float]:
    found = job(*ranks, window=Window.STEPS)
    training = [RankTraining(rank=r, node=r) for r in range(len(ranks))]
    return metrics_by_name(found.model_copy(update={"training": training}))


def test_a_rank_without_a_counted_step_does_not_swell_what_the_others_do_in_a_step() -> None:
    cut = stepped(1, complete_until_ns=900)  # a file that ends before its first step does
    for found in (on_own_nodes(stepped(0), stepped(1)), on_own_nodes(stepped(0), cut)):
        assert (found["all_reduce_count"], found["all_reduce_bytes"]) == (1, MB)
        assert (found["all_reduce_ns"], found["bytes_across_nodes"]) == (200, MB)


@pytest.mark.parametrize("kinds", [("all_reduce", "all_reduce"), ("send", "recv")])
def test_bytes_across_nodes_are_those_of_one_rank_in_one_step(kinds: tuple[str, str]) -> None:
    ranks = [stepped(r, kinds[r % 2], ranks=4) for r in range(4)]
    assert on_own_nodes(*ranks)["bytes_across_nodes"] == MB


def at_sizes(times: dict[int, int]) -> Made:
    """A world of one rank, with an all-reduce of each size."""
    made, begin = Made(rank=0, world_size=1), 0
    for size, ns in times.items():
        made.collective(begin, begin + ns, size=size, members=1)
        begin += 2 * ns
    return made


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (
            {1000: 2000, 2000: 10_000, 3000: 4000},
            "its 3 message sizes do not lie on a straight line (R² 0.06, at least 0.9 is needed)",
        ),
        ({1000: 5000, 2000: 4000, 3000: 3000}, "its times do not grow with the message size"),
    ],
)
def test_a_line_that_is_no_latency_and_no_bandwidth_is_withheld(times: dict[int, int], why: str) -> None:
    found = job(at_sizes(times))
    (fit,) = found.collective_fits
    assert (fit.points, fit.alpha_ns, fit.beta_ns_per_byte) == (3, None, None)
    withheld = ("collective_fits.alpha_ns, beta_ns_per_byte", f"all_reduce of 1 ranks, waiting included: {why}")
    assert withheld in [(w.field, w.reason) for w in found.quality.withheld]


def test_a_line_through_the_points_is_given() -> None:
    found = job(at_sizes({1000: 1500, 2000: 2000, 3000: 2500}))
    (fit,) = found.collective_fits
    assert [fit.alpha_ns, fit.beta_ns_per_byte] == pytest.approx([1000, 0.5])
    assert not [w for w in found.quality.withheld if "collective_fits" in w.field]


def test_times_of_unmatched_ranks_are_marked_as_including_waiting() -> None:
    matched = job(rank(0, [(0, 100)]), rank(1, [(50, 100)]))
    alone = job(rank(0, [(0, 100)]))
    assert [(m.median_transfer_ns, m.includes_waiting) for m in matched.message_sizes] == [(50, False)]
    assert [(m.median_transfer_ns, m.includes_waiting) for m in alone.message_sizes] == [(100, True)]


@pytest.mark.parametrize("read", [2, 3])
def test_a_bus_bandwidth_is_withheld_with_its_reason_where_ranks_without_a_group_cannot_be_matched(read: int) -> None:
    """A world of three ranks: two are read, or all three of which one was recorded at another time."""
    ranks = [rank(r, [(0, 100)] if r < 2 else [(300, 400)], 3, members=-1) for r in range(read)]
    for made in ranks:
        for collective in made.collectives:
            collective["group"] = -1
    found = job(*ranks)
    (row,) = found.collectives
    assert row.algorithm_bandwidth_gb_per_s is not None
    assert row.bus_bandwidth_gb_per_s is None
    assert "collectives.bus_bandwidth_gb_per_s" in [w.field for w in found.quality.withheld]


def test_what_agrees_in_no_order_is_refused_before_any_order_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two recordings are compared at every offset: an offset that cannot match must be cheap to refuse."""
    reference = np.arange(400)
    swapped, other = reference.copy(), reference.copy()
    swapped[[100, 101]] = swapped[[101, 100]]
    other[100] = 7
    assert _agreement(reference, swapped) is not None
    monkeypatch.setattr(np, "argsort", lambda *_, **__: pytest.fail("an order was tried"))
    assert _agreement(reference, other) is None


def test_sequences_that_differ_are_not_forced_to_match() -> None:
    two = rank(1, [(0, 100)])
    two.collective(200, 300, "broadcast", size=8, members=2)
    found = job(rank(0, [(0, 100), (200, 300)]), two)
    assert all(c.waiting_ns is None for c in found.collectives)
    assert any("cannot be matched" in f.what for f in found.quality.problems)


def test_a_rank_whose_recording_began_later_is_matched_by_the_ends() -> None:
    spans = [(i * 1000, i * 1000 + 100) for i in range(6)]
    found = job(rank(0, spans), rank(1, [(s + 20, e) for s, e in spans[2:]]))
    (row,) = found.collectives
    assert (row.count, row.waiting_ns) == (4, 4 * 20)


@pytest.mark.parametrize(("clock", "ahead"), [("node0", 0), ("node1", 123_456)])
def test_recordings_of_equal_length_that_began_a_step_apart_are_paired_by_what_they_moved(
    clock: str, ahead: int
) -> None:
    """Rank 0 recorded steps 0 to 4, rank 1 recorded steps 1 to 5: they share four steps, not five."""

    def steps(number: int, first: int, late: int, shift: int) -> Made:
        made = rank(number, [], clock=clock if number else "node0")
        for i in range(first, first + 5):
            made.collective(i * 1000 + late + shift, i * 1000 + 100 + shift, size=MB + i, members=2)
        return made

    (row,) = job(steps(0, 0, 0, 0), steps(1, 1, 30, ahead)).collectives
    assert (row.count, row.bytes, row.waiting_ns) == (4, sum(MB + i for i in range(1, 5)), 4 * 30)


def test_neighbours_that_began_in_another_order_on_another_rank_are_still_pairs() -> None:
    """Two gathers at the same time: the order in which a thread begins them is random."""
    ranks = []
    for number in (0, 1):
        made = rank(number, [(i * 1000, i * 1000 + 100) for i in range(9)])
        for size, start in ((MB + 1, 10_000), (MB + 2, 10_001)) if number else ((MB + 2, 10_000), (MB + 1, 10_001)):
            made.collective(start, 10_090 + 10 * (size - MB), size=size, members=2)
        ranks.append(made)
    found = job(*ranks)
    (row,) = found.collectives
    assert (row.count, row.waiting_ns) == (11, 2)


def test_equal_steps_of_recordings_that_began_a_step_apart_are_paired_by_their_ends() -> None:
    spans = [(i * 1000, i * 1000 + 100) for i in range(6)]
    (row,) = job(rank(0, spans[:5]), rank(1, [(s + 20, e) for s, e in spans[1:]])).collectives
    assert (row.count, row.waiting_ns) == (4, 4 * 20)


@pytest.mark.parametrize("other", [{"size": 2 * MB}, {"members": 2, "size": MB, "dtype": "float32"}])
def test_collectives_of_other_sizes_or_types_are_no_pair(other: dict[str, Any]) -> None:
    spans = [(0, 100), (200, 300)]
    two = rank(1, spans, **{k: v for k, v in other.items() if k != "dtype"})
    for row in two.collectives:
        row["dtype"] = two.name(other.get("dtype", "bfloat16"))
    found = job(rank(0, spans), two)
    assert all(c.waiting_ns is None for c in found.collectives)
    assert any("cannot be matched" in f.what for f in found.quality.problems)


def test_clocks_in_unix_nanoseconds_are_compared_to_the_nanosecond() -> None:
    """At 1.7e18 the resolution of a float64 is 256 ns."""
    ranks = []
    for number, ahead in ((0, 0), (1, 12_345)):
        made = Made(rank=number, world_size=2, path=f"rank{number}.json", host=f"node{number}")
        made.identity |= {"clock": "trace", "epoch_ns": 1_735_689_600_123_456_789}
        for i in range(5):
            made.collective(i * 1000 + 71 * number + ahead, i * 1000 + 333 + ahead, size=MB, members=2)
        ranks.append(made)
    found = job(*ranks)
    assert [(c.offset_ns, c.residual_ns) for c in found.clocks] == [(0, 0), (12_345, 0)]
    assert found.collectives[0].mean_start_skew_ns == 71


def test_clock_skew_is_reported_even_where_no_process_knows_its_rank() -> None:
    made = Made(source="nsys", path="node0.sqlite", world_size=2)
    for pid, late in ((10, 0), (20, 40)):
        made.collective(late, 100, size=MB, members=2)
        made.events[-1]["process"] = pid
    (row,) = job(made).collectives
    assert (row.mean_start_skew_ns, row.last_arrivals) == (40, {})


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
    made.name("dp")
    made.name("tp")
    made.collective(0, 10, group="dp", members=2).collective(20, 30, group="tp", members=-1)
    assert {(c.group, c.group_size) for c in job(made).collectives} == {("dp", 2), ("tp", None)}


def test_a_send_is_counted_but_never_compared_with_a_receive() -> None:
    zero, one = rank(0, []), rank(1, [])
    zero.collective(0, 10, "send", size=MB, members=2)
    one.collective(0, 90, "recv", size=MB, members=2)
    found = {c.kind: c for c in job(zero, one).collectives}
    assert (found["send"].waiting_ns, found["recv"].waiting_ns) == (None, None)
    assert found["send"].bus_bandwidth_gb_per_s == pytest.approx(MB / 10)


def test_a_fused_send_and_receive_is_each_ranks_own_too() -> None:
    """The middle stage of a pipeline exchanges more often than the others; no exchange has all ranks."""
    calls = {0: 1, 1: 3, 2: 2}
    ranks = [rank(r, [(100 * i, 100 * i + 10) for i in range(n)], 3, kind="send_recv") for r, n in calls.items()]
    found = job(*ranks)
    (row,) = found.collectives
    assert (row.count, row.min_rank_count, row.max_rank_count, row.bytes) == (6, 1, 3, 6 * MB)
    assert row.waiting_ns is None
    assert not [f for f in found.quality.problems if "matched" in f.what]


def test_chance_is_the_binomial_tail() -> None:
    assert chance_of(5, 8, 1 / 8) == pytest.approx(0.00123, rel=1e-2)
    assert chance_of(1, 8, 1 / 8) == 1.0
    assert chance_of(400, 4000, 1 / 16) < 1e-10


MS = 10**6


def on_one_host(ahead_ms: int, late_ms: int = 0, kind: str = "all_reduce") -> Summary:
    """Two ranks of one host in short collectives every 20 ms. The second clock is ahead; by turns one of the ranks
    sees late that the collective ended, as on a machine without a free core."""
    made = [rank(number, []) for number in range(2)]
    for i in range(20):
        for number, one in enumerate(made):
            late = late_ms * MS if i % 2 == number else 0
            begin = i * 20 * MS + number * ahead_ms * MS
            one.collective(begin, begin + MS // 10 + late, kind, size=MB + i, members=2)
    return job(*made)


def clock_doubts(found: Summary) -> list[str]:
    return [f.what for f in found.quality.problems if "clocks" in f.what]


@pytest.mark.parametrize("late_ms", [0, 2, 5])
def test_ranks_of_one_host_that_wait_for_a_core_have_one_clock(late_ms: int) -> None:
    assert clock_doubts(on_one_host(0, late_ms)) == []


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_collective_that_ends_before_it_begins_elsewhere_shows_that_clocks_differ(kind: str) -> None:
    assert clock_doubts(on_one_host(50, kind=kind)) == [
        "ranks of one host seem to have several clocks: lateness is doubtful"
    ]


def test_a_broadcast_may_end_at_its_root_before_it_begins_elsewhere() -> None:
    assert clock_doubts(on_one_host(5, kind="broadcast")) == []
