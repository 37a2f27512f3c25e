"""One process of a trace: its rows of every column, its rank, and its clock.

An nsys report holds every process of a node; all analyses work on one process at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import used
from harness.common.ranks import rank_in_range
from harness.traces.columns import distinct
from harness.traces.trace import Activity, Calls, Collectives, Events, HostSpans, Ranges, Trace

_Columns = TypeVar("_Columns", Events, Calls, Ranges, Collectives, HostSpans)
RowIndex = slice | NDArray[np.intp]


@dataclass(frozen=True)
class ProcessView:
    """The rows of one process. `epoch_ns` is added to its times for unix time; None where it is not recorded."""

    trace: Trace
    events: Events
    calls: Calls
    ranges: Ranges
    collectives: Collectives
    host: HostSpans
    rank: int | None
    pid: int | None
    epoch_ns: int | None

    @property
    def names(self) -> list[str]:
        return self.trace.names

    @property
    def on_cpu(self) -> bool:
        """Whether operators stand in for kernels: a trace without any device activity."""
        return bool(len(self.events)) and not bool((self.events.activity <= Activity.MEMSET).any())

    @property
    def clock(self) -> str:
        """Views with the same clock need no alignment: the unix clock of one host, else the clock of one file."""
        identity = self.trace.identity
        return identity.path if self.epoch_ns is None else identity.host or "unknown host"


def views(trace: Trace) -> list[ProcessView]:
    """One view per process that did something on a device, else per process with ranges; in the order of their pids."""
    pids = _working(trace)
    # Others may have left ranges or calls beside the one that worked, as a data loader's workers do.
    alone = not pids or pids[0] < 0 or all(bool((p.process == pids[0]).all()) for p in (trace.ranges, trace.calls))
    if len(pids) > 1 or not alone:
        return [view_of(trace, pid) for pid in pids]
    pid = trace.identity.pid if not pids or pids[0] < 0 else pids[0]
    everything = (trace.events, trace.calls, trace.ranges, trace.collectives, trace.host)
    rank = process_rank(trace, *(pids or [-1]))
    return [ProcessView(trace, *everything, rank=rank, pid=pid, epoch_ns=_epoch(trace))]


def processes(trace: Trace) -> list[int]:
    """The pids of all processes with work or ranges, without a launcher that only made calls."""
    return sorted({*distinct(trace.events.process), *distinct(trace.ranges.process)})


def process_rank(trace: Trace, pid: int) -> int | None:
    """The rank of one process: the rank of the trace, where it holds one worker; else the rank that the trace records
    for the process; else the rank in the names of its ranges (`epoch_0-rank_3`)."""
    identity = trace.identity
    if identity.rank is not None and len(_working(trace)) <= 1:
        return identity.rank
    if pid in identity.ranks:
        return identity.ranks[pid]
    ranges = trace.ranges
    own = ranges.name[ranges.process == pid] if pid >= 0 else ranges.name
    found = {rank_in_range(trace.names[n]) for n in used(own)} - {None}
    return found.pop() if len(found) == 1 else None


def _working(trace: Trace) -> list[int]:
    return distinct(trace.events.process) or distinct(trace.ranges.process)


def view_of(trace: Trace, pid: int) -> ProcessView:
    """One process alone."""
    mine = rows_of(trace.events.process == pid)
    return ProcessView(
        trace,
        select_rows(trace.events, mine),
        select_rows(trace.calls, rows_of(trace.calls.process == pid)),
        select_rows(trace.ranges, rows_of(trace.ranges.process == pid)),
        _collectives_of(trace.collectives, mine, len(trace.events)),
        select_rows(trace.host, rows_of(trace.host.process == pid)),
        rank=process_rank(trace, pid),
        pid=pid,
        epoch_ns=_epoch(trace),
    )


def _collectives_of(collectives: Collectives, mine: RowIndex, events: int) -> Collectives:
    """The rows whose event is `mine`, pointing into the process's own events."""
    new_index = np.full(events, -1, np.int64)
    new_index[mine] = np.arange(len(new_index[mine]))
    own = np.where(collectives.event >= 0, new_index[np.maximum(collectives.event, 0)], -1)
    return replace(select_rows(collectives, rows_of(own >= 0)), event=own[own >= 0])


def _epoch(trace: Trace) -> int | None:
    return 0 if trace.identity.clock == "unix" else trace.identity.epoch_ns


def rows_of(mask: NDArray[np.bool_]) -> RowIndex:
    """The chosen rows, as a slice where they lie together: a slice of a column is no copy."""
    rows = np.flatnonzero(mask)
    if len(rows) == 0:
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def select_rows(columns: _Columns, rows: RowIndex) -> _Columns:
    """The chosen rows of a set of columns."""
    return type(columns)(**{f.name: getattr(columns, f.name)[rows] for f in fields(columns)})
