"""Files of AMD's profilers that are not read: known by their content, and said with what records a file that is."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.common.bounded_read import BoundedReadError, open_regular

SUFFIXES = (".json", ".json.gz", ".csv", ".csv.gz", ".pftrace", ".otf2")
_PROBE_BYTES, _PIECE_BYTES = 64 << 10, 1 << 20
_MOST_BYTES = 256 << 20  # unpacked, while the records of a file are counted


class _Kind(NamedTuple):
    """begins: how the file begins; counted: what stands once in each record; named: what a record is of."""

    what: str
    begins: re.Pattern[bytes]
    counted: bytes
    named: str


_KINDS = (
    _Kind("JSON of rocprofv3", re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"'), b'"dispatch_info"', "kernel"),
    _Kind(
        "JSON of rocprof",
        re.compile(rb'\s*\{\s*"traceEvents"(?s:.){1,60000}"BeginNs"\s*:\s*"\d'),
        b'"BeginNs"',
        "event",
    ),
    _Kind("a table of rocprof", re.compile(rb'"?Index"?,"?KernelName"?,'), b"\n", "kernel"),
    _Kind(
        "a table of rocprofv3",
        re.compile(rb'("?Guid"?,)?"?(?:Kind|Domain)"?,[^\n]{1,300}"?Correlation_Id"?,'),
        b"\n",
        "row",
    ),
    _Kind("a table of rocprofv3", re.compile(rb'"?Correlation_Id"?,"?Dispatch_Id"?,"?Agent_Id"?,'), b"\n", "row"),
    _Kind("a table of rocprofv3", re.compile(rb'"?Name"?,"?Calls"?,"?TotalDurationNs"?,'), b"\n", "row"),
)
_BY_NAME = {
    ".pftrace": "a trace of Perfetto, as rocprofv3 writes it",
    ".otf2": "a trace in OTF2, as rocprofv3 writes it",
}
_COMMAND = "rocprofv3 --runtime-trace --output-format rocpd -- python train.py"
_INSTEAD = f"which is not read: record a database (`{_COMMAND}`), and give its *_results.db"


def amd_sentence(path: Path) -> str | None:
    """What a file of AMD's profilers is, and what to type instead; None for any other file."""
    if not path.name.endswith(SUFFIXES):
        return None
    if path.suffix in _BY_NAME:
        return f"is {_BY_NAME[path.suffix]}, {_INSTEAD}"
    try:
        start = b"".join(_pieces(path, _PROBE_BYTES, most=_PROBE_BYTES))
        kind = next((kind for kind in _KINDS if kind.begins.match(start)), None)
        return None if kind is None else f"is {kind.what} ({_count(path, kind)}), {_INSTEAD}"
    except (OSError, BoundedReadError, zlib.error):
        return None


def _count(path: Path, kind: _Kind) -> str:
    found, size, rest = 0, 0, b""
    for piece in _pieces(path, _PIECE_BYTES, _MOST_BYTES):
        size += len(piece)
        text = rest + piece
        found += text.count(kind.counted)
        rest = text[len(text) - len(kind.counted) + 1 :]
    found -= kind.counted == b"\n" and found > 0  # the line of the heads
    least = "at least " if size >= _MOST_BYTES else ""
    return f"{least}{found:,} {kind.named}{'s' * (found != 1)}"


def _pieces(path: Path, piece_bytes: int, most: int) -> Iterator[bytes]:
    """The text of a file, unpacked, up to `most` bytes of it."""
    engine = zlib.decompressobj(wbits=31) if path.suffix == ".gz" else None
    with open_regular(path) as file:
        packed = b""
        while most > 0:
            if engine is None:
                text = file.read(min(piece_bytes, most))
            else:
                packed = packed or file.read(piece_bytes)
                text = engine.decompress(packed, min(piece_bytes, most))
                packed = engine.unconsumed_tail
            if not text and (engine is None or not packed):
                return
            most -= len(text)
            yield text
