"""The sampled lines of a traced process: which file of its run is about it, on the clock of its trace."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.process.view import View
from harness.observe.lines import lines_file
from harness.run import TRACE_FOLDERS, Run
from harness.traces.sampled_lines import SampledLines, read_about, read_sampled_lines

AROUND_NS = 1_000_000_000  # before the first event of a trace and after its last


def lines_of(view: View) -> SampledLines | None:
    """The lines of a process while it was recorded; None: they were not sampled, or its clock is not known."""
    path = _file_of(view)
    span = _recorded(view)
    if path is None or span is None or view.epoch_ns is None:
        return None
    found = read_sampled_lines(path, span[0] + view.epoch_ns - AROUND_NS, span[1] + view.epoch_ns + AROUND_NS)
    return None if found is None else found.since(view.epoch_ns)


def _file_of(view: View) -> Path | None:
    """By the rank, or where the trace does not know it by host and pid."""
    trace = Path(view.trace.identity.path)
    if trace.parent.name not in TRACE_FOLDERS:
        return None
    run = Run(trace.parent.parent)
    if view.rank is not None:
        path = lines_file(run.path, view.rank)
        return path if path.is_file() else None
    if view.pid is None:
        return None
    host = view.trace.identity.host
    for path in run.lines():
        about = read_about(path)
        if about is not None and about.pid == view.pid and (host is None or about.host in (None, host)):
            return path
    return None


def _recorded(view: View) -> tuple[int, int] | None:
    parts = [part for part in (view.events, view.ranges, view.calls) if len(part)]
    if not parts:
        return None
    return min(int(part.start_ns.min()) for part in parts), max(int(part.end_ns.max()) for part in parts)
