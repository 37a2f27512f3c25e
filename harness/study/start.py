"""Every command that launches starts its runs here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.common.errors import HarnessError
from harness.launch.backends.protocol import Together
from harness.launch.submit import Prepared, Start, submit, submit_together
from harness.run import Run
from harness.run.record import Part
from harness.study.plan.numbers import plan_text
from harness.study.plan.plan import LaunchPlan, plan_of

if TYPE_CHECKING:
    from harness.measure.request import Measurement


def start_run(prepared: Prepared, command: list[str], part: Part | None = None, plan: LaunchPlan | None = None) -> Run:
    """Start a prepared launch; returns its run, which then exists on disk and keeps its plan.

    command: as typed. part: of which series of runs it is one. plan: if it is already made. Raises as `submit` does.
    """
    return submit(Start(prepared, command, part, _kept(plan or plan_of(prepared))))


def start_together(starts: Sequence[Start], way: Together, at_once: int | None = None) -> list[Run]:
    """Start launches that go together as one submission; returns their runs. Arguments and errors as there."""
    planned = [each._replace(files={**each.files, **_kept(plan_of(each.prepared))}) for each in starts]
    return submit_together(planned, way, at_once)


def _kept(plan: LaunchPlan) -> dict[str, str]:
    return {Run(Path()).plan.name: plan_text(plan)}


def can_be_measured(run: Run) -> bool:
    """Whether the run left traces, the training's own records, or exercise 0's results."""
    return bool(run.traces() or run.metrics() or run.collectives.parent.is_dir())


def measured(run: Run, page: bool) -> Measurement:
    """Measure the run, which writes its summary.json. page: keep what a page draws. Raises as `measure_request`."""
    from harness.measure.request import Request, measure_request

    return measure_request(Request(tokens=[str(run.path)], page=page))


def write_summary(run: Run) -> str:
    """Write summary.json; returns why there is none, as a sentence, or nothing."""
    if not can_be_measured(run):
        return "it left no traces or numbers to measure"
    try:
        measured(run, page=False)
    except HarnessError as error:
        return str(error)
    return "" if run.summary.is_file() else "summary.json could not be written"
