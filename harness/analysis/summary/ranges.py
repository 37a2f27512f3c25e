"""The program's own ranges. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class RangeTime(SummaryPart, kw_only=True):
    """All instances of one range name. A kernel belongs to the innermost range open on its launching thread at its
    launch; if that thread has none (autograd's threads), to the innermost one of the main thread. An outermost
    range of another thread lies in the main thread's innermost range that is open all the while. The main thread is
    the one with the step marks, else the one that launches most. START/END ranges own nothing. Counters and
    arguments in names become `#`."""

    name: str
    """The label."""
    instances: int
    """Outermost instances. A range inside a range of the same name is not counted again."""
    host_ns: int
    """Sum of their durations on the host."""
    kernels: int
    """Device events launched inside them, nested ranges included."""
    kernel_ns: int
    """Sum of those events' durations."""
    idle_ns: int = 0
    """Idle time of the process's devices while this was the main thread's innermost range."""
    idle_inside_ns: int | None = None
    """Idle time of the process's devices while it was open on the main thread, nested ranges included."""
    collectives: int = 0
    """Collectives, sends and receives launched inside them that began in the window, nested ranges included."""
    message_bytes: int = 0
    """Sum of their message sizes, of those that were recorded."""
