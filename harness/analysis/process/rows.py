"""Analyses that give rows of each process. The rows of all processes follow each other in the Summary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis import summary
from harness.analysis.process import before_steps, host_activities, launches, long_messages, profiler_overhead, traffic
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import SummaryPart


class ProcessRows(SummaryPart, kw_only=True):
    """The rows of one process, those of each analysis under the field of the Summary that they fill."""

    before_steps: list[summary.BeforeSteps] = []
    host_activities: list[summary.HostActivity] = []
    traffic: list[summary.Traffic] = []
    long_messages: list[summary.LongMessage] = []
    launches: list[summary.Launches] = []
    profiler_overhead: list[summary.ProfilerOverhead] = []

    def by_name(self) -> dict[str, list[Any]]:
        """The rows by their field."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


def rows_of_process(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> ProcessRows:
    """What each analysis gives for the process. chosen: the events inside the window."""
    return ProcessRows(
        before_steps=before_steps.of_process(measured),
        host_activities=host_activities.of_process(measured),
        traffic=traffic.of_process(measured),
        long_messages=long_messages.of_process(measured),
        launches=launches.of_process(measured, chosen),
        profiler_overhead=profiler_overhead.of_process(measured),
    )
