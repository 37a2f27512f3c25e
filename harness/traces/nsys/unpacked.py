"""A packed export, unpacked into a temporary file while it is read: SQLite needs a file that it can seek in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from isal import igzip, isal_zlib

from harness.traces.decompression_limit import unpacks_to_too_much
from harness.traces.errors import TraceError

_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, isal_zlib.error)  # type: ignore[assignment]
_PIECE_BYTES = 1 << 20
_SPARE_BYTES = 256 << 20  # of the disk, which are left to others


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A temporary plain copy of the gzipped `path`.

    Raises:
        TraceError: the compressed file is damaged, or its content is too much for the disk or for any export.
    """
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        plain = Path(folder) / "export.sqlite"
        with path.open("rb") as packed, plain.open("wb", buffering=0) as target:
            _copy(path, packed, target)
        yield plain


def _copy(path: Path, packed: BinaryIO, target: FileIO) -> None:
    unpacked_bytes = 0
    for piece in _pieces(path, packed):
        unpacked_bytes += len(piece)
        if too_much := unpacks_to_too_much(packed.tell(), unpacked_bytes):
            raise TraceError(path, too_much)
        folder = Path(str(target.name)).parent
        if shutil.disk_usage(folder).free < _SPARE_BYTES + len(piece):
            raise TraceError(path, _no_room(folder, unpacked_bytes))
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[target.write(rest) :]
        except OSError as error:
            raise TraceError(path, f"{_no_room(folder, unpacked_bytes)} ({error.strerror})") from error


def _pieces(path: Path, packed: BinaryIO) -> Iterator[bytes]:
    try:
        source = igzip.open(packed, "rb")  # type: ignore[no-untyped-call]
        while piece := source.read(_PIECE_BYTES):
            yield piece
    except _DAMAGE as error:
        raise TraceError(path, f"cannot be unpacked: the compressed file is damaged ({error})") from error


def _no_room(folder: Path, size: int) -> str:
    return (
        f"cannot be unpacked: {folder.parent} has no room for its {size / 1e6:.0f} MB and more; "
        "name a folder with more room in TMPDIR, or unpack it yourself"
    )
