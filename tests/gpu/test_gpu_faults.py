"""Known faults: does the report name each of them, with the right milliseconds?

A fault's cost is measured against the same training without it. Slow data loading and fp32 are options of exercise 1;
the others are small loops of our own. Throttled clocks are no case: nothing here sets clocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.gpu.work import EXERCISE_1, Work, figures

pytestmark = pytest.mark.gpu
NOT_CLOSE = 0.25  # of the measured cost, by which the finding may be off


class Fault(NamedTuple):
    """The same training without the fault, the expected causes, and whether a CPU shows it."""

    without: str
    expected: tuple[str, ...]
    on_cpu: bool = False
    says_at_least: bool = False  # the report names only the part that surely goes away


FAULTS = {
    "slow-data": Fault("bf16", ("data-stall",), on_cpu=True),
    "fp32": Fault("bf16", ("fp32",), says_at_least=True),
    "fault-sync": Fault("eager-small", ("sync",)),
    "fault-pageable": Fault("eager", ("pageable", "copies")),
}


class Found(NamedTuple):
    """What the report says first of the training with the fault, and the fault's cost per step."""

    fault: Fault
    cause: str | None
    lost_ns: float
    cost_ns: float


@pytest.fixture(scope="session", params=FAULTS)
def found(request: pytest.FixtureRequest, work: Work) -> Found:
    name, fault = request.param, FAULTS[request.param]
    if not fault.on_cpu:
        request.getfixturevalue("gpu")
    if name in EXERCISE_1:
        summaries = [work.exercise_1(each).summary for each in (name, fault.without)]
        steps = [figures(summary)["step_ns"] for summary in summaries]
    else:
        loops = [work.recorded(each) for each in (name, fault.without)]
        summaries, steps = [loop.summary for loop in loops], [loop.recorded_ns for loop in loops]
    first: dict[str, Any] = next(iter(summaries[0]["findings"]), {"cause": None, "lost_ns": 0.0})
    return Found(fault, first["cause"], first["lost_ns"], steps[0] - steps[1])


def test_the_report_names_it_first(found: Found, record_property: Any) -> None:
    record_property("finding", found._asdict())
    assert found.cause in found.fault.expected


@pytest.mark.usefixtures("gpu")
def test_its_milliseconds_are_the_measured_ones(found: Found) -> None:
    assert has_right_size(found.fault, found.lost_ns, found.cost_ns), found


def has_right_size(fault: Fault, lost_ns: float, cost_ns: float) -> bool:
    """Whether the reported time is the measured cost of the fault, within 25 %; a lower bound may be low."""
    too_much = lost_ns > (1 + NOT_CLOSE) * cost_ns
    too_little = lost_ns < (1 - NOT_CLOSE) * cost_ns
    return not too_much and (fault.says_at_least or not too_little)
