"""Measures one run, and writes its summary.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.common.errors import HarnessError
from harness.run import Run

if TYPE_CHECKING:
    from harness.measure.request import Measurement


def can_be_measured(run: Run) -> bool:
    """Whether the run left traces, the training's own records, or exercise 0's results."""
    return bool(run.traces() or run.metrics() or run.collectives.parent.is_dir())


def measured(run: Run, with_page: bool) -> Measurement:
    """Measure the run, which writes its summary.json. with_page: keep what it draws. Raises as `measure_request`."""
    from harness.measure.request import ReportRequest, measure_request

    return measure_request(ReportRequest(tokens=[str(run.path)], page=with_page))


def write_summary(run: Run) -> str:
    """Write summary.json; returns why there is none, as a sentence, or nothing."""
    if not can_be_measured(run):
        return "it left no traces or numbers to measure"
    try:
        measured(run, with_page=False)
    except HarnessError as error:
        return str(error)
    return "" if run.summary.is_file() else "summary.json could not be written"
