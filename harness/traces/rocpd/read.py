"""A database of rocprofv3 (rocpd) to a Trace."""

from __future__ import annotations

from pathlib import Path

from harness.traces.columns import NameTable, distinct, empty
from harness.traces.database import Database, Kind, opened
from harness.traces.errors import TraceError
from harness.traces.messages import communication_kernels
from harness.traces.nccl_calls import collectives_of_calls
from harness.traces.progress import OnProgress, silent
from harness.traces.rocpd.agents import read_agents
from harness.traces.rocpd.host import RCCL_DOMAIN, Regions, hip_calls, host_ranges
from harness.traces.rocpd.identity import identity
from harness.traces.rocpd.rccl import messages_of
from harness.traces.rocpd.tables import Recording, recordings
from harness.traces.rocpd.work import COPIES, KERNELS, device_events
from harness.traces.trace import Calls, Events, Ranges, Trace

_KIND = Kind("a database of rocprofv3", "as rocprofv3 writes it", "record it again")
_MOST_RECORDINGS = 256  # of one node
_NEEDED = {
    KERNELS: ("start", "end", "agent_id", "kernel_id", "event_id"),
    COPIES: ("start", "end", "src_agent_id", "dst_agent_id", "size"),
    "region": ("start", "end", "tid", "name_id", "event_id"),
}
_NO_CALLS = (
    "which collective each RCCL kernel carries out was not recorded (record with rocprofv3 --rccl-trace)"
)


def read_rocpd(path: Path, host: bool, progress: OnProgress = silent) -> Trace:
    """Read a database of rocprofv3, of one process or of several of one machine.

    Raises:
        TraceError: the file is not rocprofv3's, or of a schema that is not known.
    """
    with opened(path, progress, _KIND) as database:
        return _trace(path, database, host)


def _trace(path: Path, database: Database, host: bool) -> Trace:
    recorded = recordings(database)
    _check(path, recorded)
    names = NameTable()
    regions = [Regions(recording) for recording in recorded] if host else []
    calls = hip_calls(regions, names) if host else empty(Calls)
    ranges = host_ranges(regions, names) if host else empty(Ranges)
    agents = [read_agents(recording) for recording in recorded]
    events = device_events(list(zip(recorded, agents, strict=True)), names, calls)
    device_names = {number: name for each in agents for number, name in each.names.items()}
    has_rccl = RCCL_DOMAIN in names and bool((ranges.domain == names[RCCL_DOMAIN]).any())
    return Trace(
        identity=identity(path, recorded, _used(device_names, events), "nccl" if has_rccl else None),
        names=names.texts,
        events=events,
        calls=calls,
        ranges=ranges,
        collectives=collectives_of_calls(ranges, events, names, messages_of(regions)),
        notes=[_NO_CALLS]
        if host and not has_rccl and len(communication_kernels(names.texts, events))
        else [],
    )


def _check(path: Path, recorded: list[Recording]) -> None:
    if not recorded:
        raise TraceError(
            path, "is an SQLite database, but not one of rocprofv3: it has no rocpd_metadata table"
        )
    if len(recorded) > _MOST_RECORDINGS:
        raise TraceError(path, f"is damaged: it holds more than {_MOST_RECORDINGS} recordings")
    for recording in recorded:
        for table, needed in _NEEDED.items():
            have = recording.columns(table)
            missing = [column for column in needed if have and column not in have]
            if missing:
                raise TraceError(
                    path,
                    f"has a schema that is not known: {recording.table(table)} has no column {missing[0]} "
                    "(read are rocpd's versions 3.0.0 to 3.0.5)",
                )


def _used(names: dict[int, str], events: Events) -> dict[int, str]:
    """The devices on which work was recorded; all of the machine's where there is none."""
    used = set(distinct(events.device))
    return {number: name for number, name in names.items() if number in used} or names
