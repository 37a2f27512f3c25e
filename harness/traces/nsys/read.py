"""An nsys export to a Trace."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.traces.columns import Names, distinct, empty
from harness.traces.errors import TraceError
from harness.traces.nsys.database import Database, opened
from harness.traces.nsys.devices import read_devices
from harness.traces.nsys.events import api_calls, device_events, without_names
from harness.traces.nsys.identity import dropped_events, export_facts, identity, ranks_in_ranges
from harness.traces.nsys.metrics import metric_series, peak_memory_bytes
from harness.traces.nsys.nccl_messages import Payloads, device_collectives, is_nccl_call, read_payloads
from harness.traces.nsys.ranges import nvtx_ranges
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import Calls, Ranges, Trace

_GZIP_MAGIC = b"\x1f\x8b"
_NO_SIZES = "message sizes were not exported (export with --include-json=true)"


def read_sqlite(path: Path, host: bool = True, progress: OnProgress = silent) -> Trace:
    """Read an export (.sqlite, or packed as .sqlite.gz). Raises TraceError for what is no nsys export."""
    if not is_packed(path):
        with opened(path, progress) as database:
            return trace_of(path, database, host)
    from harness.traces.nsys.unpacked import unpacked

    with unpacked(path) as plain, opened(plain, progress) as database:
        return trace_of(path, database, host)


def is_packed(path: Path) -> bool:
    """Whether a file is gzipped, by its content."""
    with path.open("rb") as stream:
        return stream.read(2) == _GZIP_MAGIC


def trace_of(path: Path, database: Database, host: bool) -> Trace:
    """Everything that an open export says; `path` is what the trace is known by."""
    export = export_facts(database)
    if "StringIds" not in database.tables and not export:
        raise TraceError(path, "is an SQLite database, but not an export of nsys: it has no StringIds table")
    names, devices = Names(), read_devices(database)
    calls = api_calls(database, names) if host else empty(Calls)
    events = device_events(database, names, calls, devices)
    last_ns = max((int(column.max()) for column in (events.end_ns, calls.end_ns) if len(column)), default=0)
    ranges = nvtx_ranges(database, names, last_ns) if host else empty(Ranges)
    payloads = read_payloads(database)
    processes = {pid for part in (events, ranges) for pid in distinct(part.process) if pid >= 0}
    said = [names.texts[i] for i in set(ranges.name.tolist())]
    own_ranks = ranks_in_ranges(ranges, names.texts)
    unnamed = without_names(events, names)
    return Trace(
        identity=identity(database, export, path, processes, own_ranks, payloads=payloads, devices=devices),
        names=names.texts,
        events=events,
        calls=calls,
        ranges=ranges,
        collectives=device_collectives(ranges, events, names, payloads),
        metrics=metric_series(database, devices),
        peak_memory_bytes=peak_memory_bytes(database, devices),
        dropped_events=dropped_events(database),
        notes=[note for note in (_open(ranges), unnamed, _sizes(export, said, payloads)) if note],
    )


def _open(ranges: Ranges) -> str | None:
    still_open = int(ranges.is_open.sum())
    return f"{still_open} NVTX ranges never ended; they are cut off at the last event" if still_open else None


def _sizes(export: dict[str, object], said: Iterable[str], payloads: Payloads) -> str | None:
    """A sentence where NCCL's ranges are there and the export was made without what NCCL attached to them."""
    left_out = str(export.get("EXPORT_PARAM_INCLUDE_JSON")).lower() == "false"
    return _NO_SIZES if left_out and not payloads.by_place and any(map(is_nccl_call, said)) else None
