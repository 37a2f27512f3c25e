"""The error of every reader of traces: one sentence that names the file."""

from __future__ import annotations

from pathlib import Path

from harness.common.errors import WorkError
from harness.common.printable import printable


class TraceError(WorkError):
    """A file that cannot be read as a trace, and why."""

    def __init__(self, path: Path | str, why: str) -> None:
        self.path = printable(str(path))
        super().__init__(f"{self.path}: {why}")
        self.why = why

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str]]:
        """Both arguments, so that an exception from a worker process can be rebuilt."""
        return TraceError, (self.path, self.why)
