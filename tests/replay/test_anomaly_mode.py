"""Autograd's anomaly mode on CPUs: isnan, any and item after each node of the backward pass, told with their time."""

from __future__ import annotations

import pytest

from harness.analysis.summary import Summary, TimeLost
from harness.explain.findings import explanation, loss_sentence
from harness.traces.trace import Activity
from tests.replay.replaying import summary_of
from tests.synthetic.columns import MAIN, Made

MS, US = 1_000_000, 1_000
_CHECK = (("aten::isnan", 20), ("aten::ne", 180), ("aten::_is_any_true", 20), ("aten::any", 160), ("aten::item", 20))


def trained(checks: int, *, in_forward: bool = False, looks: int = 0, steps: int = 8) -> Summary:
    """A process with 8 nodes of 2 ms in forward and backward, `checks` of 0.4 ms, and further `looks` at any NaN."""
    made = Made(rank=0, world_size=1, path="rank0.json", host="node", clock="unix")
    now = 0

    def operator(name: str, ns: int) -> None:
        nonlocal now
        made.event(now, now + ns, name, activity=Activity.CPU_OP, stream=MAIN, launch_ns=now)
        now += ns + 5 * US

    for number in range(steps):
        begin = now
        for phase in ("forward", "backward"):
            inside = now
            for node in range(8):
                operator("aten::mm", 2 * MS)
                if node < checks and (phase == "forward") == in_forward:
                    for name, us in _CHECK:
                        operator(name, us * US)
            for _ in range(looks):
                operator("aten::isnan", 100 * US)
                operator("aten::any", 100 * US)
            made.range(inside, now, phase)
        made.step(begin, now, number)
    return summary_of([made.trace()])


def of_anomaly_mode(s: Summary) -> list[TimeLost]:
    return [found for found in s.findings if found.cause == "anomaly-mode"]


@pytest.mark.parametrize("checks", [4, 8])
def test_its_operators_are_named_with_their_time_and_place(checks: int) -> None:
    s = trained(checks)
    (found,) = of_anomaly_mode(s)
    assert found.lost_ns == pytest.approx(checks * 400 * US, rel=0.05)
    assert (found.phase, found.ranks) == ("backward", [0])
    said = f"{loss_sentence(s, found)} {explanation(s, found)}"
    assert f"aten::isnan, aten::_is_any_true and aten::item, {checks} times in each step" in said
    assert "anomaly mode" in said


def test_a_program_that_looks_for_nan_itself_is_not_in_anomaly_mode() -> None:
    assert of_anomaly_mode(trained(0, looks=8)) == []
    assert of_anomaly_mode(trained(1)) == []
    assert of_anomaly_mode(trained(8, in_forward=True)) == []
