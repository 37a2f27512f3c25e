"""The efficiencies of POP multiply out, none exceeds 1, and none is given where it would mislead."""

from __future__ import annotations

from fractions import Fraction
from math import isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.job.pop import Times, device_times, from_times, pop_efficiency, with_ideal_network
from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Device, PopEfficiency, StepSplit, Summary, Window
from harness.analysis.summary.replay import NO_REPLAY
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import Made

RULES = load_rules()
LONG = 10**15  # ns: 11 days


@st.composite
def times(draw: st.DrawFn) -> list[Times]:
    """Devices of which at least one computes."""
    found = []
    for i in range(draw(st.integers(1, 9))):
        elapsed = draw(st.integers(1, LONG))
        active = draw(st.integers(1, elapsed))
        found.append(Times(draw(st.integers(0 if i else 1, active)), active, elapsed))
    return found


def exact(p: PopEfficiency) -> dict[str, Fraction]:
    """The definitions, from the whole numbers beside them."""
    shares = {
        "parallel": Fraction(p.useful_ns, p.elapsed_ns * p.devices),
        "load_balance": Fraction(p.useful_ns, p.max_useful_ns * p.devices),
        "communication": Fraction(p.max_useful_ns, p.max_active_ns),
        "orchestration": Fraction(p.max_active_ns, p.elapsed_ns),
    }
    if p.transfer is not None and p.ideal_elapsed_ns is not None:
        shares["transfer"] = Fraction(p.ideal_elapsed_ns, p.elapsed_ns)
        shares["serialisation"] = shares["communication"] / shares["transfer"]
    return shares


@given(times(), st.data())
def test_the_factors_multiply_to_the_whole_and_none_exceeds_one(found: list[Times], data: st.DataObject) -> None:
    p = from_times(found, 1)
    p = with_ideal_network(p, data.draw(st.integers(0, 2 * p.elapsed_ns)))
    shares = exact(p)
    assert shares["parallel"] == shares["load_balance"] * shares["communication"] * shares["orchestration"]
    for name, share in shares.items():
        assert 0 <= share <= 1
        assert getattr(p, name) == float(share), "the number shown is the definition, correctly rounded"
    assert isclose(p.parallel, p.load_balance * p.communication * p.orchestration, rel_tol=1e-15)
    if p.serialisation is not None and p.transfer is not None:
        assert isclose(p.communication, p.serialisation * p.transfer, rel_tol=1e-15)
    assert (p.transfer is None) == (p.serialisation is None) == (p.split_unknown is not None)


def rank(
    number: int, compute: tuple[int, int], reduce: tuple[int, int], world: int = 2, steps: range = range(4)
) -> Made:
    """Per step of 1,000 ns one kernel, one all-reduce and one copy of 100 ns at 850."""
    made = Made(rank=number, world_size=world, path=f"rank{number}.json", host="n", clock="unix")
    for i in steps:
        at = 1000 * i
        made.step(at, at + 1000, i).event(at + compute[0], at + compute[1], launch_ns=at)
        made.collective(at + reduce[0], at + reduce[1], members=world)
        made.copy(at + 850, at + 950, 8, launch_ns=at)
    return made


def job(*ranks: Made, window: Window = Window.STEPS) -> Summary:
    return summarise_job([part for made in ranks for part in measure_trace(made.trace(), window, RULES)])


def known(s: Summary) -> PopEfficiency:
    assert s.pop is not None
    return s.pop


def why_not(s: Summary) -> str:
    assert s.pop is None
    return " ".join(w.reason for w in s.quality.withheld if w.field == "pop")


def test_by_hand_and_hidden_communication_costs_nothing() -> None:
    """Rank 0 computes 600 of 1,000 and communicates 200 more; rank 1 computes 400 and communicates 100 below it and
    300 beside it. Both copy 100 with nothing else."""
    p = known(job(rank(0, (0, 600), (600, 800)), rank(1, (0, 400), (300, 700))))
    assert (p.devices, p.steps, p.elapsed_ns) == (2, 4, 4000)
    assert (p.useful_ns, p.max_useful_ns, p.max_active_ns) == (4000, 2400, 3600)
    assert p.parallel == 0.5
    assert p.load_balance == pytest.approx(1000 / 1200)
    assert p.communication == pytest.approx(600 / 900)
    assert p.orchestration == pytest.approx(900 / 1000)
    assert (p.serialisation, p.transfer, p.split_unknown) == (None, None, NO_REPLAY)


def test_a_replay_with_an_ideal_network_splits_communication_efficiency() -> None:
    p = known(job(rank(0, (0, 600), (600, 800)), rank(1, (0, 400), (300, 700))))
    split = with_ideal_network(p, 3200)
    assert split.transfer == 0.8
    assert split.serialisation == pytest.approx((600 / 900) / 0.8)
    assert split.split_unknown is None
    assert (
        split.model_copy(
            update={"ideal_elapsed_ns": None, "transfer": None, "serialisation": None, "split_unknown": NO_REPLAY}
        )
        == p
    ), "nothing else changes"


@pytest.mark.parametrize(("ideal_ns", "reason"), [(4001, "longer than the run"), (2600, "saves idle time")])
def test_a_replay_that_cannot_split_it_says_why(ideal_ns: int, reason: str) -> None:
    p = known(job(rank(0, (0, 600), (600, 800)), rank(1, (0, 400), (300, 700))))
    split = with_ideal_network(p, ideal_ns)
    assert (split.transfer, split.serialisation, split.ideal_elapsed_ns) == (None, None, ideal_ns)
    assert reason in (split.split_unknown or "")


def test_only_the_steps_that_every_rank_counted_are_counted() -> None:
    """A rank that counted one step less did not compute less."""
    p = known(job(rank(0, (0, 600), (600, 800)), rank(1, (0, 600), (600, 800), steps=range(1, 4))))
    assert (p.steps, p.elapsed_ns, p.load_balance) == (3, 3000, 1.0)


def test_without_a_shared_step_there_is_none() -> None:
    apart = job(rank(0, (0, 600), (600, 800)), rank(1, (0, 600), (600, 800), steps=range(4, 8)))
    assert "did not count the same steps" in why_not(apart)


def test_the_longest_window_is_the_elapsed_time_so_that_a_short_one_gains_nothing() -> None:
    extents = job(rank(0, (0, 600), (600, 800)), rank(1, (200, 600), (600, 700)), window=Window.GPU)
    p = known(extents)
    assert p.elapsed_ns == 3950
    assert p.steps == 0, "the window is not one of steps"


def test_ranks_that_were_not_read_may_be_the_loaded_ones() -> None:
    assert "2 of 4 ranks were read" in why_not(job(*(rank(r, (0, 600), (600, 800), 4) for r in (0, 1))))


def test_one_device_of_an_unknown_number_says_nothing_about_the_others() -> None:
    alone = rank(0, (0, 600), (600, 800))
    alone.identity["world_size"] = None
    assert "with which it communicates" in why_not(job(alone))


def test_a_device_that_only_copies_is_not_one_that_should_compute() -> None:
    made = rank(0, (0, 600), (600, 800), world=1)
    made.copy(100, 200, 8, device=1, launch_ns=90)
    found = job(made)
    assert (len(found.devices), known(found).devices) == (2, 1)


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
