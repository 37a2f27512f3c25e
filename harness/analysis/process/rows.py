"""Analyses that give rows of each process: every module beside this one that has `of_process`.

Such a module has the name of the Summary's field that it fills, and no list names it. The rows of all processes follow
each other in the Summary. Knows no analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Summary, SummaryPart

RowsByField = dict[str, list[dict[str, Any]]]


class RowAnalysis(Protocol):
    """`chosen`: the rows of events inside the window."""

    def __call__(self, measured: MeasuredProcess, chosen: NDArray[np.bool_], /) -> Sequence[SummaryPart]: ...


@cache
def row_analyses() -> dict[str, RowAnalysis]:
    """The analyses by the field that they fill."""
    names = {field: f"{__package__}.{field}" for field in Summary.model_fields}
    modules = {field: import_module(name) for field, name in names.items() if find_spec(name)}
    return {f: cast(RowAnalysis, m.of_process) for f, m in modules.items() if hasattr(m, "of_process")}


def rows_of_process(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> RowsByField:
    """What each analysis gives for the process."""
    return {f: [row.model_dump() for row in of(measured, chosen)] for f, of in row_analyses().items()}


def rows_of_job(processes: Iterable[RowsByField]) -> dict[str, Any]:
    """The rows of all processes, one process after the other."""
    rows: RowsByField = {}
    for process in processes:
        for field, of_process in process.items():
            rows.setdefault(field, []).extend(of_process)
    return rows
