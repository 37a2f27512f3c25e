"""The one way by which every command that launches starts its runs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.launch.backends.protocol import Together
from harness.launch.submit import Prepared, Start, submit, submit_together
from harness.run import Part, Run


def start_run(prepared: Prepared, command: list[str], part: Part | None = None) -> Run:
    """Start a prepared launch; returns its run, which then exists on disk.

    command: as typed. part: of which series of runs it is one. Raises as `submit` does.
    """
    return submit(prepared, command, part)


def start_together(starts: Sequence[Start], way: Together, at_once: int | None = None) -> list[Run]:
    """Start launches that go together as one submission; returns their runs. Arguments and errors as there."""
    return submit_together(starts, way, at_once)
