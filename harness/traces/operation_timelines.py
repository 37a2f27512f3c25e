"""Timelines of operations, which are not traces: known by their content."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from harness.common.bounded_read import BoundedReadError, open_regular

TIMELINE_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".json", ".json.gz")
_PROBE_BYTES = 64 << 10  # a profiler's file shows in so many that it is one
_COLUMNS = (  # that each table has: of the operation, its start, and the worker
    re.compile(rb"\b(?:optype|op_type|operation)\b"),
    re.compile(rb"\b(?:start\w*|ts|timestamp|begin)\b"),
    re.compile(rb"\b(?:rank|worker|dp_rank|dp|stage|pp_rank|pp)\b"),
)
_OF_PROFILERS = re.compile(rb'"(?:cpu_op|user_annotation|cuda_runtime|kernel|schemaVersion|deviceProperties)"')
_OF_EVENTS = (  # a pass of a pipeline, and its step or place
    re.compile(rb'"name"\s*:\s*"(?:forward|backward)[-_ ](?:compute|step|send|recv)"', re.IGNORECASE),
    re.compile(rb'"(?:step|iteration|iter|mb_id|micro_batch|mb|microbatch|stage|pp_rank|dp_rank)"\s*:'),
)


def timeline_sentence(path: Path) -> str | None:
    """What a timeline of operations is; None for any other file."""
    if not path.name.endswith(TIMELINE_SUFFIXES) or not _is_timeline(path):
        return None
    return "is a timeline of operations, without kernels and launches: not a trace that a report reads"


def are_operations(text: bytes) -> bool:
    """Whether Chrome events that begin so are operations of a pipeline, and not a profiler's."""
    return not _OF_PROFILERS.search(text) and all(pattern.search(text) for pattern in _OF_EVENTS)


def _is_timeline(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            if path.suffix == ".parquet":
                file.seek(max(0, file.seek(0, 2) - _PROBE_BYTES))
            start = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(_PROBE_BYTES)
    except (OSError, EOFError, BoundedReadError, zlib.error):
        return False
    if path.name.endswith((".json", ".json.gz")):
        return are_operations(start)
    names = start if path.suffix == ".parquet" else start.split(b"\n", 1)[0]
    return all(pattern.search(names) for pattern in _COLUMNS)
