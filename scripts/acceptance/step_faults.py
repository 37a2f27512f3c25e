"""Step 8: known faults: does the report name each of them, with the right milliseconds?

A fault's cost is measured against the same training without it. Slow data loading and fp32 are options of exercise 1;
the others are small loops of our own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from failures import StepError
from numbers_text import ms
from place import LAUNCHER, Place, has_gpu, require_packages
from recorded import recorded
from results import Result
from runs import find

SECONDS = 45.0
NOT_CLOSE = 0.25  # of the measured cost, by which the finding may be off


class Fault(NamedTuple):
    """A fault: the case with it, the case without it, the expected causes, and whether it needs a GPU."""

    case: str
    without: str
    expected: tuple[str, ...]
    needs_gpu: bool
    says_at_least: bool = False  # the report names only the part that surely goes away


OF_RUNS = (
    Fault("slow-data", "bf16", ("data-stall",), needs_gpu=False),
    Fault("fp32", "bf16", ("fp32",), needs_gpu=True, says_at_least=True),
)
OF_LOOPS = (
    Fault("fault-data-stall", "eager", ("data-stall",), needs_gpu=False),
    Fault("fault-host-stall", "eager", ("host-stall", "tiny-kernels"), needs_gpu=True),
    Fault("fault-sync", "eager-small", ("sync",), needs_gpu=True),
    Fault("fault-pageable", "eager", ("pageable", "copies"), needs_gpu=True),
)


class Finding(NamedTuple):
    """The cause of lost time that the report names first; None: it names none."""

    cause: str | None
    each_ns: float | None


def faults(place: Place, result: Result) -> None:
    """Every fault that this machine can show."""
    require_packages("torch", *LAUNCHER)
    for fault in OF_RUNS:
        if _possible(result, fault):
            _of_run(place, result, fault)
    for fault in OF_LOOPS:
        if place.is_late:
            result.is_partial(f"no time left for {fault.case}")
        elif _possible(result, fault):
            try:
                _of_loop(place, result, fault)
            except StepError as error:
                result.broke(f"{fault.case} runs", error)
    result.lacks("throttled clocks", "nothing here sets clocks; step monitor shows nvidia-smi's reasons")


def _possible(result: Result, fault: Fault) -> bool:
    if fault.needs_gpu and not has_gpu():
        result.lacks(fault.case, "GPU")
        return False
    return True


def _of_run(place: Place, result: Result, fault: Fault) -> None:
    with_it, without = find(place, fault.case), find(place, fault.without)
    if with_it is None or without is None:
        result.lacks(fault.case, "the runs of step training")
        result.is_partial(f"the runs {fault.case} and {fault.without} are not there")
        return
    steps: list[Any] = [(run.summary["efficiency"] or {}).get("step_ns") for run in (with_it, without)]
    cost = steps[0] - steps[1] if None not in steps else None
    _judge(result, fault, finding(with_it.summary), cost)


def _of_loop(place: Place, result: Result, fault: Fault) -> None:
    without, with_it = (recorded(place, case, SECONDS) for case in (fault.without, fault.case))
    _judge(result, fault, finding(with_it.summary), with_it.recorded_ns - without.recorded_ns)


def finding(summary: dict[str, Any]) -> Finding:
    """The first of the summary's findings."""
    found = next(iter(summary["findings"]), None)
    return Finding(None, None) if found is None else Finding(found["cause"], found["lost_ns"])


def _judge(result: Result, fault: Fault, said: Finding, cost_ns: float | None) -> None:
    result.numbers[fault.case] = {"said": said.cause, "said_ns": said.each_ns, "measured_ns": cost_ns}
    named = said.cause in fault.expected
    text = f"the report names {said.cause or 'nothing avoidable'}, {ms(said.each_ns)} a step"
    result.check(f"{fault.case}: is named", named, text)
    if not named or said.each_ns is None or cost_ns is None:
        return
    close = is_right(fault, said.each_ns, cost_ns)
    compared = f"{ms(said.each_ns)} by the report, {ms(cost_ns)} against {fault.without}"
    if has_gpu():
        result.check(f"{fault.case}: in the right milliseconds", close, compared)
    else:
        result.seen(f"{fault.case}: milliseconds", compared)


def is_right(fault: Fault, said_ns: float, cost_ns: float) -> bool:
    """Whether the reported time is the measured cost of the fault, within 25 %."""
    too_much = said_ns > (1 + NOT_CLOSE) * cost_ns
    too_little = said_ns < (1 - NOT_CLOSE) * cost_ns
    return not too_much and (fault.says_at_least or not too_little)
