"""A made trace measured, without the columns of its processes."""

from __future__ import annotations

from harness.analysis.process.kinds import Rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import RankPart
from harness.analysis.summary import Window
from harness.traces.trace import Trace


def measure_trace(trace: Trace, window: Window, rules: Rules) -> list[RankPart]:
    """One part per process of the trace. What cannot be measured is a problem of the part, not an error."""
    return [part for part, _ in measured_processes(trace, window, rules)]
