"""An nsys report or its SQLite export to a Trace."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from harness.common.system.bounded_read import GZIP_MAGIC
from harness.traces.columns import NameTable, distinct, once
from harness.traces.database import Database, opened
from harness.traces.errors import TraceError
from harness.traces.nccl_calls import is_nccl_call
from harness.traces.nsys import REPORTS
from harness.traces.nsys.cuda import (
    api_calls,
    device_events,
    metric_series,
    nic_samples,
    peak_memory_bytes,
    without_names,
)
from harness.traces.nsys.devices import read_devices
from harness.traces.nsys.host import host_spans
from harness.traces.nsys.identity import (
    Payloads,
    device_collectives,
    dropped_events,
    export_metadata,
    identity,
    nvtx_ranges,
    ranks_in_ranges,
    read_payloads,
)
from harness.traces.progress import OnProgress
from harness.traces.trace import Ranges, Trace

_MOST_PROCESSES = 1024  # of one node, with those that load data
_NO_SIZES = "message sizes were not exported (export with --include-json=true)"


def read_nsys(path: Path, progress: OnProgress) -> Trace:
    """Read a report (.nsys-rep, until 2021 .qdrep) or an export (.sqlite, .sqlite.gz). Raises TraceError: the file is
    not nsys', or nsys cannot export the report."""
    with _plain(path, progress) as plain, opened(plain, progress) as database:
        return _trace(path, database)


def _plain(path: Path, progress: OnProgress) -> AbstractContextManager[Path]:
    if path.suffix in REPORTS:
        from harness.traces.nsys.export import exported

        return nullcontext(exported(path, progress))
    with path.open("rb") as stream:
        if stream.read(2) != GZIP_MAGIC:
            return nullcontext(path)
    from harness.traces.nsys.export import unpacked

    return unpacked(path)


def _trace(path: Path, database: Database) -> Trace:
    """The content of an open export; `path` is the file that the trace is named after."""
    export = export_metadata(database)
    if not database.columns("StringIds") and not export:
        raise TraceError(path, "is an SQLite database, but not an export of nsys: it has no StringIds table")
    names, devices = NameTable(), read_devices(database)
    calls = once(api_calls(database, names))
    events, doubts = device_events(database, names, calls, devices)
    last_ns = max((int(column.max()) for column in (events.end_ns, calls.end_ns) if len(column)), default=0)
    ranges = once(nvtx_ranges(database, names, last_ns))
    payloads = read_payloads(database)
    processes = {pid for part in (events, ranges) for pid in distinct(part.process) if pid >= 0}
    if len(processes) > _MOST_PROCESSES:
        raise TraceError(path, f"is damaged: it has work of more than {_MOST_PROCESSES} processes")
    own_ranks = ranks_in_ranges(ranges, names.texts)
    nics, without_nics = nic_samples(database)
    sizes = _sizes(export, ranges, names.texts, payloads)
    still_open = int(ranges.is_open.sum())
    cut_off = f"{still_open} NVTX ranges never ended; they are cut off at the last event" if still_open else None
    notes = (*doubts, cut_off, without_names(events, names), sizes, without_nics)
    return Trace(
        identity=identity(database, export, path, processes, own_ranks, payloads=payloads, devices=devices),
        names=names.texts,
        events=events,
        calls=calls,
        ranges=ranges,
        collectives=device_collectives(ranges, events, names, payloads),
        host=once(host_spans(database, names, calls, ranges)),
        metrics=metric_series(database, devices),
        nics=nics,
        peak_memory_bytes=peak_memory_bytes(database, devices),
        dropped_events=dropped_events(database),
        notes=[note for note in notes if note],
    )


def _sizes(export: dict[str, object], ranges: Ranges, texts: list[str], payloads: Payloads) -> str | None:
    """A sentence for an export with NCCL's ranges and without the payloads that NCCL attached to them."""
    if str(export.get("EXPORT_PARAM_INCLUDE_JSON")).lower() != "false" or payloads.by_place:
        return None
    return _NO_SIZES if any(is_nccl_call(texts[i]) for i in set(ranges.name.tolist())) else None
