"""A packed export, unpacked into a temporary file while it is read: SQLite needs a file that it can seek in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isal import igzip, isal_zlib

from harness.traces.errors import TraceError

_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, isal_zlib.error)  # type: ignore[assignment]


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A temporary plain copy of the gzipped `path`. Raises TraceError: the compressed file is damaged."""
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        plain = Path(folder) / "export.sqlite"
        try:
            source = igzip.open(path, "rb")  # type: ignore[no-untyped-call]
            with source, plain.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except _DAMAGE as error:
            raise TraceError(path, f"cannot be unpacked: the compressed file is damaged ({error})") from error
        yield plain
