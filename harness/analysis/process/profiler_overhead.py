"""The profiler's own work in the window of a process."""

from __future__ import annotations

from harness.analysis.process.intervals import clip, length, union
from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.analysis.summary import ProfilerOverhead
from harness.traces.trace import HostKind


def of_process(measured: MeasuredProcess) -> list[ProfilerOverhead]:
    """When any of the profiler's threads worked; none where nothing of it was recorded."""
    host, windows = measured.view.host, measured.windows
    own = host.kind == HostKind.PROFILER
    if not windows or not own.any():
        return []
    start, end = extent_of(windows)
    overhead_ns = length(clip(union(host.start_ns[own], host.end_ns[own]), start, end))
    return [ProfilerOverhead(rank=measured.view.rank, window_ns=end - start, overhead_ns=overhead_ns)]
