"""An nsys report (.nsys-rep) to a Trace, through its export."""

from __future__ import annotations

from pathlib import Path

from harness.traces.nsys.database import opened
from harness.traces.nsys.export import exported
from harness.traces.nsys.read import trace_of
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import Trace


def read_report(path: Path, host: bool = True, progress: OnProgress = silent) -> Trace:
    """Read a report. Raises TraceError where nsys cannot export it."""
    with opened(exported(path, progress), progress) as database:
        return trace_of(path, database, host)
