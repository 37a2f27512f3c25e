"""The columns of a process with everything that several analyses need, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process import collective_rows
from harness.analysis.process.collective_rows import CollectiveRows
from harness.analysis.process.host_activity import HostWatch, IdleTime
from harness.analysis.process.host_calls import LaunchTimes, launches_of
from harness.analysis.process.host_stacks import HostStacks
from harness.analysis.process.idle import NOT_WORK, Busy, busy
from harness.analysis.process.intervals import RangeTree, complement, nest, owners_of_events
from harness.analysis.process.kinds import Kinds, Rules, classify
from harness.analysis.process.phases import with_inferred_phases, with_whole_evaluations
from harness.analysis.process.steps import ProcessSteps, find_steps
from harness.analysis.process.view import ProcessView
from harness.analysis.summary import Window
from harness.traces.trace import I64, Events


@dataclass(frozen=True)
class MeasuredProcess:
    """One process, classified, nested, split into busy sets, with the window of each of its devices."""

    view: ProcessView
    kinds: Kinds
    busy: dict[int, Busy]  # by device
    rows: dict[int, slice]  # events of each device
    launches: LaunchTimes
    steps: ProcessSteps
    nesting: RangeTree
    owner: I64
    windows: dict[int, tuple[int, int]]  # by device
    idle: dict[int, IdleTime]  # by device, inside its window
    host_stacks: HostStacks

    @cached_property
    def collectives(self) -> CollectiveRows:
        """The process's collectives with their phases."""
        return collective_rows.rows(self.view, self.kinds, (self.nesting, self.owner), self.steps.between)


def prepare_process(view: ProcessView, window: Window, rules: Rules, least_warmup: int = 0) -> MeasuredProcess:
    """Compute what the analyses share. A device without events has no window and is left out. least_warmup: as in
    `find_steps`."""
    view = with_inferred_phases(with_whole_evaluations(view))
    events = view.events
    kinds = classify(events, view.names, rules)
    rows = device_rows(events.device)
    sets = {d: busy(events.start_ns[r], events.end_ns[r], kinds.event_class[r]) for d, r in rows.items()}
    launches = launches_of(view)
    until_ns = view.trace.complete_until_ns
    all_busy = list(sets.values())
    steps = find_steps(
        view.ranges, events, view.names, all_busy, launches, until_ns=until_ns, least_warmup=least_warmup
    )
    nesting = nest(view.ranges, events, steps.thread)
    owner = owners_of_events(events, nesting)
    marked = steps.window if window is Window.STEPS else None
    windows = {d: marked or _extent(events, rows[d], kinds) for d, b in sets.items() if len(b.any.start)}
    rows = {d: r for d, r in rows.items() if d in windows}
    watch = HostWatch(view, kinds, nesting, owner, steps)
    idle = {d: watch.idle_time(complement(sets[d].any, *windows[d]), r) for d, r in rows.items()}
    return MeasuredProcess(view, kinds, sets, rows, launches, steps, nesting, owner, windows, idle, watch.stacks)


def extent_of(windows: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """From the first start to the last end of at least one device's windows."""
    return min(start for start, _ in windows.values()), max(end for _, end in windows.values())


def host_window(m: MeasuredProcess) -> tuple[int, int]:
    """When the host launched what the devices did in their windows: before it, if the host is ahead of the devices."""
    marked = m.steps.marked_window
    of_steps = m.steps.window in m.windows.values()
    return marked if marked and m.steps.on_device and of_steps else extent_of(m.windows)


def range_of_events(m: MeasuredProcess) -> I64:
    """The row of the range that each event belongs to; -1 without a range. An operator's own thread may have no range
    open: the range of the main thread counts then."""
    if not m.view.on_cpu or m.nesting.main is None:
        return m.owner
    return np.where(m.owner >= 0, m.owner, m.nesting.main.of(m.view.events.start_ns))


def _extent(events: Events, rows: slice, kinds: Kinds) -> tuple[int, int]:
    """First start and last end of a device's work, events of no length included."""
    work = kinds.event_class[rows] != NOT_WORK
    return int(events.start_ns[rows][work].min()), int(events.end_ns[rows][work].max())


def device_rows(of: NDArray[np.int32]) -> dict[int, slice]:
    """The slice of each device in a column that is sorted by device."""
    if len(of) == 0:
        return {}
    bounds = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist(), len(of)]
    return {int(of[a]): slice(a, b) for a, b in pairwise(bounds)}


def inside(m: MeasuredProcess) -> NDArray[np.bool_]:
    """Events that start inside their device's window."""
    chosen = np.zeros(len(m.view.events), np.bool_)
    for d, rows in m.rows.items():
        start = m.view.events.start_ns[rows]
        chosen[rows] = (start >= m.windows[d][0]) & (start < m.windows[d][1])
    return chosen
