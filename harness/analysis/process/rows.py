"""Analyses that give rows of each process. The rows of all processes follow each other in the Summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.process import before_steps, host_activities, launches, long_messages, profiler_overhead, traffic
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Summary, SummaryPart

RowsByField = dict[str, list[dict[str, Any]]]

# The analyses by the Summary's field that they fill. The second argument marks the events inside the window.
ROW_ANALYSES: dict[str, Callable[[MeasuredProcess, NDArray[np.bool_]], Sequence[SummaryPart]]] = {
    "before_steps": before_steps.of_process,
    "host_activities": host_activities.of_process,
    "traffic": traffic.of_process,
    "long_messages": long_messages.of_process,
    "launches": launches.of_process,
    "profiler_overhead": profiler_overhead.of_process,
}


def rows_of_process(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> RowsByField:
    """What each analysis gives for the process."""
    return {field: [row.model_dump() for row in of(measured, chosen)] for field, of in ROW_ANALYSES.items()}


def rows_of_job(processes: Iterable[RowsByField]) -> dict[str, Any]:
    """The rows of all processes, one process after the other."""
    rows: RowsByField = {}
    for process in processes:
        for field, of_process in process.items():
            rows.setdefault(field, []).extend(of_process)
    types = {field.name: field.type for field in msgspec.structs.fields(Summary)}
    return {field: msgspec.convert(found, types[field]) for field, found in rows.items()}
