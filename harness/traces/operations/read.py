"""A file to the operations of a job, whatever its form."""

from __future__ import annotations

import zlib
from pathlib import Path

from harness.traces.errors import TraceError
from harness.traces.open import LFS_MAGIC, beginning
from harness.traces.operations.events import read_events
from harness.traces.operations.files import read_csv, read_parquet
from harness.traces.operations.recognise import EVENTS, TABLES, is_of_profiler, is_timeline
from harness.traces.operations.timeline import Operations, operations_of
from harness.traces.progress import OnProgress, silent


def read_operations(path: Path, progress: OnProgress = silent) -> Operations:
    """The operations of a timeline.

    Raises:
        ColumnsError: it lacks a column.
        TablesNeeded: it is Parquet, and pyarrow is not installed.
        TraceError: it cannot be read.
    """
    start = beginning(path)
    if not start:
        raise TraceError(path, "is empty")
    if start.startswith(LFS_MAGIC):
        raise TraceError(path, "is a Git LFS pointer, not the timeline itself: fetch it with `git lfs pull`")
    if path.name.endswith(EVENTS):
        return operations_of(read_events(path, progress))
    if path.name.endswith(".parquet"):
        return operations_of(read_parquet(path, progress))
    return operations_of(read_csv(path, progress))


def is_meant_as_timeline(path: Path) -> bool:
    """Whether a file that was named is read as a timeline: any table, and JSON with operations as its events."""
    if path.name.endswith(TABLES):
        return True
    if not path.name.endswith(EVENTS):
        return False
    try:
        # A profiler's file says so in its first line; a job has thousands of them.
        return not is_of_profiler(_first_text(path)) and is_timeline(path, beginning(path, unpack=True))
    except TraceError:
        return False


def _first_text(path: Path) -> bytes:
    """The first bytes, unpacked as far as they can be; of a damaged file none."""
    start = beginning(path)
    try:
        return zlib.decompressobj(wbits=31).decompress(start) if start.startswith(b"\x1f\x8b") else start
    except zlib.error:
        return b""
