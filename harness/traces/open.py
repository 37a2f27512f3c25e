"""Opens any trace: the list of readers, and what every trace gets: possible numbers, and a clock from zero on."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import numpy as np

from harness.common.display.printable import NOT_UNICODE, is_unicode, printable_name
from harness.common.system.bounded_read import GZIP_MAGIC, BoundedReadError, open_regular
from harness.traces.columns import AnySpans
from harness.traces.errors import TraceError
from harness.traces.nsys import REPORTS
from harness.traces.one_clock import on_one_clock
from harness.traces.progress import OnProgress, silent
from harness.traces.sanitize import sanitize
from harness.traces.trace import Trace

_PROBE_BYTES = 1 << 20
LFS_MAGIC = b"version https://git-lfs"


def moved_to_zero(trace: Trace) -> Trace:
    """The same trace, its clock's zero moved to the first time where that lies before it."""
    starts = [part.start_ns for part in (trace.events, trace.calls, trace.ranges, trace.host)]
    ahead = -min((int(column.min()) for column in starts if len(column)), default=0)
    if ahead <= 0:
        return trace
    events, epoch_ns, until = trace.events, trace.identity.epoch_ns, trace.complete_until_ns
    launched = (events.launch_ns != -1) | (events.launch_thread != -1)
    launch_ns = np.where(launched, events.launch_ns + ahead, -1)
    return replace(
        trace,
        identity=replace(trace.identity, epoch_ns=None if epoch_ns is None else epoch_ns - ahead),
        events=replace(_later(events, ahead), launch_ns=launch_ns),
        calls=_later(trace.calls, ahead),
        ranges=_later(trace.ranges, ahead),
        host=_later(trace.host, ahead),
        collectives=_later(trace.collectives, ahead),
        metrics=[replace(series, time_ns=series.time_ns + ahead) for series in trace.metrics],
        nics=[replace(nic, start_ns=nic.start_ns + ahead, end_ns=nic.end_ns + ahead) for nic in trace.nics],
        complete_until_ns=None if until is None else until + ahead,
    )


def _later(spans: AnySpans, ahead_ns: int) -> AnySpans:
    return replace(spans, start_ns=spans.start_ns + ahead_ns, end_ns=spans.end_ns + ahead_ns)


class TraceFormat(NamedTuple):
    """A kind of trace file, known by the end of its name or by its first bytes (`magic`).

    `read` takes what is called with the bytes that are read. `contains`: what is near the beginning of a trace, where
    other files have such names too.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path, OnProgress], Trace]
    magic: bytes = b""
    contains: bytes = b""
    name: str = ""


# Each reader is imported when it is needed: together they would be half of a short command's time.
def _nsys(path: Path, progress: OnProgress) -> Trace:
    from harness.traces.nsys.read import read_nsys

    return read_nsys(path, progress)


def _rocpd(path: Path, progress: OnProgress) -> Trace:
    try:
        read_rocpd: Callable[[Path, OnProgress], Trace] = resolve_name("harness.traces.rocpd.read:read_rocpd")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("harness.traces.rocpd"):
            raise
        what = "is a database of rocprofv3, and this copy of the harness is without its reader, harness/traces/rocpd"
        raise TraceError(path, what) from None
    return read_rocpd(path, progress)


def _kineto(path: Path, progress: OnProgress) -> Trace:
    from harness.traces.kineto.read import read_kineto

    return read_kineto(path, progress)


# Every format; nothing else lists them. A file of no known name is read as the last, which says what is wrong with it.
FORMATS = [
    TraceFormat((".db",), _rocpd, contains=b"rocpd_metadata", name="rocpd"),  # first: what is SQLite is nsys' otherwise
    TraceFormat((*REPORTS, ".sqlite", ".sqlite.gz"), _nsys, magic=b"SQLite format 3\0", name="nsys"),
    TraceFormat((".json", ".json.gz"), _kineto, contains=b'"traceEvents"', name="Kineto"),
]


def open_trace(path: Path | str, *, progress: OnProgress = silent) -> Trace:
    """Read a trace of any format in `FORMATS`. Raises TraceError: it cannot be read, in one sentence.

    `progress` is called with the bytes that are read. Trace.notes says what is missing of a damaged file.
    """
    path = Path(path)
    if not is_unicode(str(path)):
        raise TraceError(path, f"has a {NOT_UNICODE}")
    start = checked_beginning(path, "trace")
    known = (f for f in FORMATS if path.name.endswith(f.suffixes) or (f.magic and start.startswith(f.magic)))
    trace = next(known, FORMATS[-1]).read(path, progress)
    return _printable(moved_to_zero(on_one_clock(sanitize(trace))))


def _printable(trace: Trace) -> Trace:
    """The trace without control characters in its texts; the table of names has none."""
    found = trace.identity
    identity = replace(
        found,
        host=found.host and printable_name(found.host),
        device_names={device: printable_name(name) for device, name in found.device_names.items()},
        tool_version=found.tool_version and printable_name(found.tool_version),
        backend=found.backend and printable_name(found.backend),
    )
    return replace(
        trace,
        identity=identity,
        groups={printable_name(name): ranks for name, ranks in trace.groups.items()},
        metrics=[replace(series, name=printable_name(series.name)) for series in trace.metrics],
        nics=[replace(nic, port=printable_name(nic.port)) for nic in trace.nics],
        notes=[printable_name(note) for note in trace.notes],
    )


def checked_beginning(path: Path, what: str) -> bytes:
    """As `beginning`. Raises TraceError: it cannot be read, is empty, or only points at what it should be."""
    start = beginning(path)
    if not start:
        raise TraceError(path, "is empty")
    if start.startswith(LFS_MAGIC):
        raise TraceError(path, f"is a Git LFS pointer, not the {what} itself: fetch it with `git lfs pull`")
    return start


def beginning(path: Path, unpack: bool = False) -> bytes:
    """The first bytes of a file; with `unpack`, enough text to recognise a trace, or b"" if it is damaged.

    Raises TraceError: it cannot be read, or is no regular file.
    """
    try:
        with open_regular(path) as stream:
            start = stream.read(_PROBE_BYTES if unpack else 512)
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}") from error
    except BoundedReadError as error:
        raise TraceError(path, str(error)) from None
    if unpack and start.startswith(GZIP_MAGIC):
        try:
            return zlib.decompressobj(wbits=31).decompress(start, _PROBE_BYTES)
        except zlib.error:
            return b""
    return start
