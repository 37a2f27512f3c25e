"""Profiles to columns: whatever tool recorded them, a Trace comes out.

`open_trace` reads one file, `find_traces` looks for them, `map_traces` works on many at once.
"""

from harness.traces.errors import TraceError
from harness.traces.find import find_traces
from harness.traces.many import map_traces
from harness.traces.open import open_trace
from harness.traces.trace import Trace

__all__ = ["Trace", "TraceError", "find_traces", "map_traces", "open_trace"]
