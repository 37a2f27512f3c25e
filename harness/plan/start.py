"""Starts the runs of a series, each with its plan."""

from __future__ import annotations

from collections.abc import Sequence

from harness.common.run_folder.run_files import PLAN
from harness.launch.backends.protocol import Together
from harness.launch.submit import PreparedLaunch, Start, submit, submit_together
from harness.plan.numbers import plan_text
from harness.plan.plan import LaunchPlan, plan_of
from harness.run import Run
from harness.run.record import SeriesPart


def start_run(prepared: PreparedLaunch, command: list[str], part: SeriesPart) -> Run:
    """Start a prepared launch; returns its run, which then exists on disk and keeps its plan.
    command: as typed. part: of which series of runs it is one. Raises as `submit` does."""
    return submit(Start(prepared, command, part, kept(plan_of(prepared))))


def start_together(starts: Sequence[Start], way: Together, at_once: int | None = None) -> list[Run]:
    """Start launches that go together as one submission; returns their runs. Arguments and errors as there."""
    planned = [each._replace(files={**each.files, **kept(plan_of(each.prepared))}) for each in starts]
    return submit_together(planned, way, at_once)


def kept(plan: LaunchPlan) -> dict[str, str]:
    """The files in which a run keeps its plan."""
    return {PLAN.name: plan_text(plan)}
