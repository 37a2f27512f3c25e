"""The one way by which every command that launches starts a run."""

from __future__ import annotations

from harness.launch.submit import Prepared, submit
from harness.run import Part, Run


def start_run(prepared: Prepared, command: list[str], part: Part | None = None) -> Run:
    """Start a prepared launch; returns its run, which then exists on disk.

    command: as typed. part: of which series of runs it is one. Raises as `submit` does.
    """
    return submit(prepared, command, part)
