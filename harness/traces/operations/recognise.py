"""Whether a file is a timeline of operations: of a table its columns say so, of JSON its events. Imports no reader,
since every search for traces asks."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from harness.common.bounded_read import BoundedReadError, open_regular
from harness.traces.operations.vocabulary import FUSED, ROLES, column_of, plain_operation

TABLES = (".csv", ".csv.gz", ".parquet")
EVENTS = (".json", ".json.gz")
DELIMITERS = (",", ";", "\t")
_PARQUET = b"PAR1"
_FOOTER_BYTES = 1 << 20


def is_timeline(path: Path, start: bytes) -> bool:
    """Whether a file is a timeline of operations. start: its first bytes, unpacked."""
    if path.name.endswith(EVENTS):
        return _are_operations(start)
    if path.name.endswith(".parquet"):
        return _names_columns(path)
    return path.name.endswith(TABLES) and _has_columns(heads_of(start))


def heads_of(start: bytes) -> Sequence[str]:
    """The names in the first line of a table of text that begins so; empty: it is no text."""
    if b"\0" in start:
        return []
    text = start.split(b"\n", 1)[0].decode("utf-8-sig", "replace").rstrip("\r")
    try:
        return next(csv.reader([text], delimiter=delimiter_of(text)), [])
    except csv.Error:
        return []


def delimiter_of(line: str) -> str:
    """What stands between the names of a table's first line."""
    return max(DELIMITERS, key=line.count)


def _has_columns(heads: Sequence[str]) -> bool:
    named = {named[0] for head in heads if (named := column_of(head))}
    times = {"duration", "end"} & named
    return {"operation", "start"} <= named and bool(times) and bool({"rank", "dp_rank", "stage"} & named)


def _names_columns(path: Path) -> bool:
    """Whether the end of a Parquet file names the columns that every timeline has; needs no library."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - _FOOTER_BYTES))
            footer = file.read(_FOOTER_BYTES)
    except (OSError, BoundedReadError):
        return False
    names = re.findall(rb"[A-Za-z_]{2,24}", footer) if footer.endswith(_PARQUET) else []
    return _has_columns([name.decode("ascii") for name in dict.fromkeys(names)])


_NAME = re.compile(rb'"name"\s*:\s*"([\w \-]{3,40})"')
_OF_PROFILERS = re.compile(
    rb'"(?:cpu_op|user_annotation|cuda_runtime|cuda_driver|kernel|gpu_memcpy|python_function|schemaVersion|'
    rb'deviceProperties|ac2g|External id)"'
)
_OF_OPERATIONS = re.compile(
    rb'"(?:step|iteration|iter|mb_id|micro_batch|mb|microbatch|model_chunk|seq_id|stage|pp_rank|dp_rank)"\s*:'
)


def is_of_profiler(start: bytes) -> bool:
    """Whether a JSON text that begins so is a profiler's."""
    return _OF_PROFILERS.search(start) is not None


def _are_operations(start: bytes) -> bool:
    """Whether a JSON text that begins so has operations as its events, and is not a profiler's. A name of one word,
    such as `forward`, is one only beside a step, a micro-batch or a stage."""
    if is_of_profiler(start):
        return False
    names = {plain_operation(found[1].decode("ascii", "replace")) for found in _NAME.finditer(start)}
    known = [name for name in names if name in ROLES or name in FUSED]
    return any("-" in name for name in known) or (bool(known) and bool(_OF_OPERATIONS.search(start)))
