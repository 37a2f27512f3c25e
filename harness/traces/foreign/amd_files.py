"""Files of AMD's profilers that are not read: known by their content, and said with what records a file that is."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from harness.common.bounded_read import BoundedReadError, open_regular

SUFFIXES = (".json", ".json.gz", ".csv", ".csv.gz", ".pftrace", ".otf2")
_PROBE_BYTES, _PIECE_BYTES = 64 << 10, 1 << 20
_MOST_BYTES = 256 << 20  # unpacked, while the records of a file are counted
_EVENTS = re.compile(rb'\s*\{\s*"traceEvents"(?s:.){1,60000}"BeginNs"\s*:\s*"\d')

_BY_NAME = {
    ".pftrace": "a trace of Perfetto, as rocprofv3 writes it",
    ".otf2": "a trace in OTF2, as rocprofv3 writes it",
}
_COMMAND = "rocprofv3 --runtime-trace --output-format rocpd -- python train.py"
_INSTEAD = f"which is not read: record a database (`{_COMMAND}`), and give its *_results.db"


class _Kind(NamedTuple):
    """begins: how the file begins; counted: what stands once in each record; named: what a record is of."""

    what: str
    begins: re.Pattern[bytes]
    counted: bytes
    named: str


_KINDS = (
    _Kind("JSON of rocprofv3", re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"'), b'"dispatch_info"', "kernel"),
    _Kind("JSON of rocprof", _EVENTS, b'"BeginNs"', "event"),
    *(
        _Kind(f"a table of {tool}", re.compile(heads), b"\n", record)
        for tool, heads, record in (
            ("rocprof", rb'"?Index"?,"?KernelName"?,', "kernel"),
            ("rocprofv3", rb'("?Guid"?,)?"?(?:Kind|Domain)"?,[^\n]{1,300}"?Correlation_Id"?,', "row"),
            ("rocprofv3", rb'"?Correlation_Id"?,"?Dispatch_Id"?,"?Agent_Id"?,', "row"),
            ("rocprofv3", rb'"?Name"?,"?Calls"?,"?TotalDurationNs"?,', "row"),
        )
    ),
)


def amd_sentence(path: Path) -> str | None:
    """What a file of AMD's profilers is, and what to type instead; None for any other file."""
    if not path.name.endswith(SUFFIXES):
        return None
    if path.suffix in _BY_NAME:
        return f"is {_BY_NAME[path.suffix]}, {_INSTEAD}"
    try:
        with _text(path) as file:
            start = file.read(_PROBE_BYTES)
        kind = next((kind for kind in _KINDS if kind.begins.match(start)), None)
        return None if kind is None else f"is {kind.what} ({_count(path, kind)}), {_INSTEAD}"
    except (OSError, EOFError, BoundedReadError, zlib.error):
        return None


def _count(path: Path, kind: _Kind) -> str:
    found, size, rest = 0, 0, b""
    with _text(path) as file:
        while size < _MOST_BYTES and (piece := file.read(_PIECE_BYTES)):
            size += len(piece)
            text = rest + piece
            found += text.count(kind.counted)
            rest = text[len(text) - len(kind.counted) + 1 :]
    found -= kind.counted == b"\n" and found > 0  # the line of the heads
    least = "at least " if size >= _MOST_BYTES else ""
    return f"{least}{found:,} {kind.named}{'s' * (found != 1)}"


@contextmanager
def _text(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    with open_regular(path) as file:
        yield gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
