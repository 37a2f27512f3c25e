"""Made traces measured, without the columns of their processes."""

from __future__ import annotations

from typing import Any

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import Rules, load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import RankPart
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.steps import ProcessSteps
from harness.analysis.process.view import views
from harness.analysis.summary import Summary, Window
from harness.traces.trace import Trace
from tests.synthetic.columns import Made

RULES = load_rules()


def measure_trace(trace: Trace, window: Window, rules: Rules = RULES) -> list[RankPart]:
    """One part per process of the trace. What cannot be measured is a problem of the part, not an error."""
    return [part for part, _ in measured_processes(trace, window, rules)]


def a_rank(number: int, world: int | None = 2, host: str = "node0", **identity: Any) -> Made:
    """A rank of one job, without any event; all ranks' clocks are unix time."""
    return Made(rank=number, world_size=world, path=f"rank{number}.json", host=host, clock="unix", **identity)


def parts_of(*ranks: Made, window: Window = Window.STEPS) -> list[RankPart]:
    """The parts of all processes of these traces."""
    return [part for made in ranks for part in measure_trace(made.trace(), window)]


def part_of(made: Made, window: Window = Window.STEPS) -> RankPart:
    """The part of a trace's only process."""
    (part,) = measure_trace(made.trace(), window)
    return part


def summary_of(*ranks: Made, window: Window = Window.STEPS) -> Summary:
    """The summary of one job, without a replay."""
    return summarise_job(parts_of(*ranks, window=window))


def steps_of(made: Made) -> ProcessSteps:
    """The steps of a trace's first process."""
    return prepare_process(views(made.trace())[0], Window.STEPS, RULES).steps


def idle_of(made: Made, window: Window = Window.STEPS) -> dict[str, int]:
    """The idle time of a trace's only device by cause."""
    (device,) = part_of(made, window).devices
    return {cause.cause: cause.duration_ns for cause in device.idle_causes}
