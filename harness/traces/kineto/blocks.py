"""A trace file as blocks of plain bytes, unpacked if need be; must not know what the bytes mean."""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from isal import isal_zlib

from harness.traces.decompression_limit import unpacks_to_too_much
from harness.traces.errors import TraceError
from harness.traces.progress import OnProgress, silent

BLOCK_BYTES = 256 << 10  # fits the cache of one core; larger blocks read slower
MOST_RECORD_BYTES = 64 << 20  # of text in which no record ends
_PACKED_BYTES = 64 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31  # zlib's number for "with a gzip header"
_DAMAGE: type[Exception] = isal_zlib.error  # type: ignore[assignment]


class Blocks:
    """The blocks of one file. After iteration, `broken` says why it ended early; None: it did not."""

    def __init__(self, path: Path, progress: OnProgress = silent) -> None:
        self.path = path
        self.broken: str | None = None
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb", buffering=0) as file:
                size = self.path.stat().st_size
                for block in _worthwhile(self._unpacked(file)) if _is_packed(file) else _plain(file):
                    self._progress(file.tell(), size)
                    yield block
        except OSError as error:
            raise TraceError(self.path, f"cannot be read: {error.strerror or error}") from error

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed. Raises TraceError: the file cannot be read."""
        try:
            with self.path.open("rb", buffering=0) as file:
                return _is_packed(file)
        except OSError as error:
            raise TraceError(self.path, f"cannot be read: {error.strerror or error}") from error

    def plain_from(self, start: int) -> Iterator[bytes]:
        """The blocks of a plain file from byte `start` on."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            yield from _plain(file)

    def _unpacked(self, file: FileIO) -> Iterator[bytes]:
        """Everything that can be unpacked, also of a file that ends in the middle."""
        engine, unpacked = isal_zlib.decompressobj(wbits=_GZIP_WBITS), 0
        try:
            while packed := file.read(_PACKED_BYTES):
                while packed:
                    if engine.eof:
                        engine = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
                    block = engine.decompress(packed, BLOCK_BYTES)
                    unpacked += len(block)
                    if too_much := unpacks_to_too_much(file.tell(), unpacked):
                        raise TraceError(self.path, too_much)
                    yield block
                    packed = engine.unused_data.lstrip(b"\0") if engine.eof else engine.unconsumed_tail
        except _DAMAGE as error:
            self.broken = f"the compressed data is damaged ({error})"
            return
        if not engine.eof:
            self.broken = "the compressed file ends in the middle"


def _worthwhile(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes without small pieces, which a file of many compressed parts would be."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PACKED_BYTES:
            yield b"".join(held) if len(held) > 1 else piece
            held, size = [], 0
    if size:
        yield b"".join(held)


def more(stream: Iterator[bytes], size: int) -> bytes:
    """The next blocks of a stream as one text of at least `size` bytes, or as many as there are; b"" at its end.

    A reader that found nothing in its text asks for as many bytes again: the text doubles, so the reader searches each
    byte only a few times.
    """
    taken: list[bytes] = []
    while size > 0 and (block := next(stream, None)) is not None:
        taken.append(block)
        size -= len(block)
    return taken[0] if len(taken) == 1 else b"".join(taken)


def _plain(file: FileIO) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def _is_packed(file: FileIO) -> bool:
    magic = file.read(len(_GZIP_MAGIC))
    file.seek(0)
    return magic == _GZIP_MAGIC
