"""Files of AMD's profilers that are not read: known by their content, and said with what records a file that is."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from harness.common.system.bounded_read import BoundedReadError, open_regular

SUFFIXES = (".json", ".json.gz", ".csv", ".csv.gz", ".pftrace", ".otf2")
_PROBE_BYTES = 64 << 10
_COMMAND = "rocprofv3 --runtime-trace --output-format rocpd -- python train.py"
_INSTEAD = f"which is not read: record a database (`{_COMMAND}`), and give its *_results.db"
_BY_NAME = {
    ".pftrace": "a trace of Perfetto, as rocprofv3 writes it",
    ".otf2": "a trace in OTF2, as rocprofv3 writes it",
}
_BY_BEGINNING = (
    ("JSON of rocprofv3", re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')),
    ("JSON of rocprof", re.compile(rb'\s*\{\s*"traceEvents"(?s:.){1,60000}"BeginNs"\s*:\s*"\d')),
    ("a table of rocprof", re.compile(rb'"?Index"?,"?KernelName"?,')),
    ("a table of rocprofv3", re.compile(rb'("?Guid"?,)?"?(?:Kind|Domain)"?,[^\n]{1,300}"?Correlation_Id"?,')),
    ("a table of rocprofv3", re.compile(rb'"?Correlation_Id"?,"?Dispatch_Id"?,"?Agent_Id"?,')),
    ("a table of rocprofv3", re.compile(rb'"?Name"?,"?Calls"?,"?TotalDurationNs"?,')),
)


def amd_sentence(path: Path) -> str | None:
    """What a file of AMD's profilers is, and what to type instead; None for any other file."""
    if not path.name.endswith(SUFFIXES):
        return None
    what = _BY_NAME.get(path.suffix)
    if what is None:
        start = _beginning(path)
        what = next((what for what, begins in _BY_BEGINNING if begins.match(start)), None)
    return None if what is None else f"is {what}, {_INSTEAD}"


def _beginning(path: Path) -> bytes:
    """The first bytes, unpacked; empty if they cannot be read."""
    try:
        with open_regular(path) as file:
            return (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(_PROBE_BYTES)
    except (OSError, EOFError, BoundedReadError, zlib.error):
        return b""
