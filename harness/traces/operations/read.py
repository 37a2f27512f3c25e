"""A file to the operations of a job, whatever its form."""

from __future__ import annotations

from pathlib import Path

from harness.traces.errors import TraceError
from harness.traces.open import LFS_MAGIC, beginning
from harness.traces.operations.events import read_events
from harness.traces.operations.files import read_csv, read_parquet
from harness.traces.operations.recognise import EVENTS, TABLES, is_timeline
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
        return is_timeline(path, beginning(path, unpack=True))
    except TraceError:
        return False
