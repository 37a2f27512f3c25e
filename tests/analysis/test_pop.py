"""The efficiencies of POP multiply out, none exceeds 1, and none is given where it would mislead."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.job.pop import device_times, pop_efficiency, with_ideal_network
from harness.analysis.summary import Device, PopEfficiency, StepSplit, Summary, Window
from harness.analysis.summary.replay import NO_REPLAY
from tests.analysis.measuring import a_rank, summary_of
from tests.synthetic.columns import Made

Span = tuple[int, int]


def rank(number: int, compute: Span, reduce: Span, world: int | None = 2, steps: range = range(4)) -> Made:
    """Per step of 1,000 ns one kernel, one all-reduce and one copy of 100 ns at 850."""
    made = a_rank(number, world)
    for i in steps:
        at = 1000 * i
        made.step(at, at + 1000, i).event(at + compute[0], at + compute[1], launch_ns=at)
        made.collective(at + reduce[0], at + reduce[1], members=2 if world is None else world)
        made.copy(at + 850, at + 950, 8, launch_ns=at)
    return made


def known(s: Summary) -> PopEfficiency:
    assert s.pop is not None
    return s.pop


UNEVEN = [rank(0, (0, 600), (600, 800)), rank(1, (0, 400), (300, 700))]


def test_by_hand_and_hidden_communication_costs_nothing() -> None:
    """Rank 0 computes 600 of 1,000 and communicates 200 more; rank 1 computes 400 and communicates 100 below it and
    300 beside it. Both copy 100 with nothing else. A replay with an ideal network splits communication."""
    p = known(summary_of(*UNEVEN))
    assert (p.devices, p.steps, p.elapsed_ns) == (2, 4, 4000)
    assert (p.useful_ns, p.max_useful_ns, p.max_active_ns) == (4000, 2400, 3600)
    shares = (p.parallel, p.load_balance, p.communication, p.orchestration)
    assert shares == pytest.approx((0.5, 1000 / 1200, 600 / 900, 900 / 1000))
    assert (p.serialisation, p.transfer, p.split_unknown) == (None, None, NO_REPLAY)
    split = with_ideal_network(p, 3200)
    assert (split.transfer, split.split_unknown) == (0.8, None)
    assert split.serialisation == pytest.approx((600 / 900) / 0.8)


@pytest.mark.parametrize(("ideal_ns", "reason"), [(4001, "longer than the run"), (2600, "saves idle time")])
def test_a_replay_that_cannot_split_it_says_why(ideal_ns: int, reason: str) -> None:
    split = with_ideal_network(known(summary_of(*UNEVEN)), ideal_ns)
    assert (split.transfer, split.serialisation, split.ideal_elapsed_ns) == (None, None, ideal_ns)
    assert reason in (split.split_unknown or "")


LESS = rank(1, (0, 600), (600, 800), steps=range(1, 4))
ONE = rank(0, (0, 600), (600, 800), world=1).copy(100, 200, 8, device=1, launch_ns=90)


@pytest.mark.parametrize(
    ("ranks", "window", "expected"),
    [
        # a rank that counted one step less did not compute less
        ([UNEVEN[0], LESS], Window.STEPS, {"steps": 3, "elapsed_ns": 3000, "load_balance": 1.0}),
        # the longest window is the elapsed time, so that a short one gains nothing
        ([UNEVEN[0], rank(1, (200, 600), (600, 700))], Window.GPU, {"elapsed_ns": 3950, "steps": 0}),
        ([ONE], Window.STEPS, {"devices": 1}),  # a device that only copies is not one that should compute
    ],
)
def test_only_what_every_rank_counted_and_computes_is_counted(
    ranks: list[Made], window: Window, expected: dict[str, float]
) -> None:
    p = known(summary_of(*ranks, window=window))
    assert {name: getattr(p, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([UNEVEN[0], rank(1, (0, 600), (600, 800), steps=range(4, 8))], "did not count the same steps"),
        ([rank(r, (0, 600), (600, 800), 4) for r in (0, 1)], "2 of 4 ranks were read"),  # of which one may be loaded
        ([rank(0, (0, 600), (600, 800), None)], "with which it communicates"),
    ],
)
def test_where_it_would_mislead_there_is_none(ranks: list[Made], reason: str) -> None:
    s = summary_of(*ranks)
    assert s.pop is None
    assert reason in " ".join(w.reason for w in s.quality.withheld if w.field == "pop")


def a_device(compute_ns: int = 5, exposed_ns: int | None = 1, idle_ns: int | None = 4) -> Device:
    split: dict[str, Any] = {"window_ns": 10, "compute_ns": compute_ns, "communication_ns": exposed_ns, "memory_ns": 0,
             "exposed_communication_ns": exposed_ns, "overlapped_communication_ns": 0, "exposed_memory_ns": 0,
             "idle_ns": idle_ns}  # fmt: skip
    steps = [StepSplit(step="1", **split)]
    return Device(**split, rank=0, device=0, source="x", gpu_events=1, kernels=1, steps=steps)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (a_device(exposed_ns=None), "CUDA graphs"),
        (a_device(idle_ns=None), "holes"),
        (a_device(compute_ns=0), "computed"),
    ],
)
def test_what_the_devices_do_not_know_is_withheld_with_its_reason(device: Device, reason: str) -> None:
    p, withheld = pop_efficiency(
        device_times([a_device(), device] if device.compute_ns else [device]), Window.STEPS, ""
    )
    assert p is None
    assert [w.field for w in withheld] == ["pop"] and reason in withheld[0].reason


def test_a_job_without_a_trace_has_none_and_needs_no_reason() -> None:
    assert pop_efficiency(device_times([]), Window.STEPS, "0 of 2 ranks were read") == (None, [])
