"""The error of every reader of traces: one sentence that names the file. How much a compressed trace may hold: a small
file can unpack to a thousand times its size."""

from __future__ import annotations

from pathlib import Path

from harness.common.display.printable import printable
from harness.common.errors import WorkError

_ALWAYS_BYTES = 128 << 20
_MOST_RATIO = 100  # real traces: 15 to 30 (benchmarks/bench_read_kineto.py), exports of nsys less


class TraceError(WorkError):
    """A file that cannot be read as a trace, and why."""

    def __init__(self, path: Path | str, why: str) -> None:
        self.path = printable(str(path))
        super().__init__(f"{self.path}: {why}")
        self.why = why

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str]]:
        """Both arguments, so that an exception from a worker process can be rebuilt."""
        return TraceError, (self.path, self.why)


def unpacks_to_too_much(packed_bytes: int, unpacked_bytes: int) -> str:
    """Why a file is not unpacked further, after so many bytes of it; empty: it is."""
    if unpacked_bytes <= max(_ALWAYS_BYTES, _MOST_RATIO * packed_bytes):
        return ""
    return f"unpacks to more than {_MOST_RATIO} times its size, more than any trace: it is damaged, or is not a trace"
