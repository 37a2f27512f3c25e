"""Reads the small files of a run, which another process or person wrote: regular, of bounded size and depth; and walks
its folders.

What is not so gives one sentence. A FIFO would wait for ever, a device never end, and deep JSON exhaust the stack.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from harness.common.system.users import whose

MOST_BYTES = 64 << 20  # a summary of a thousand ranks has some 20 MB
MOST_LINE_BYTES = 1 << 20  # a step's line has some 400 bytes
MOST_DEPTH = 64
GZIP_MAGIC = b"\x1f\x8b"  # the first bytes of a packed file
_TOO_DEEP = f"is JSON nested more than {MOST_DEPTH} levels deep, the limit for a file of this kind"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WITHOUT_MARK: dict[tuple[int, ...], str] = {
    (1, 0, 1, 0): "utf-16-le",
    (0, 1, 0, 1): "utf-16-be",
    (1, 0, 0, 0): "utf-32-le",
    (0, 0, 0, 1): "utf-32-be",
}


class BoundedReadError(ValueError):
    """The file is not what it should be; the sentence does not name it."""


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading.

    Raises:
        OSError: it is missing or may not be read.
        BoundedReadError: it is a folder, a pipe or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer opens at once
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise BoundedReadError(f"is {_kind(mode)}, not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_bounded(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it is missing or may not be read.
        BoundedReadError: it is a folder, a pipe or a device, or longer than `most_bytes`.
    """
    with open_regular(path) as file:
        too_long = os.fstat(file.fileno()).st_size > most_bytes  # the kernel's own files say 0
        content = b"" if too_long else file.read(most_bytes + 1)
    if too_long or len(content) > most_bytes:
        raise BoundedReadError(f"is longer than {_amount(most_bytes)}, the limit for a file of this kind")
    return content


def read_bounded_text(path: Path, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """Its text; `errors` as in `bytes.decode`. Raises as `read_bounded`, and BoundedReadError for what is not UTF-8."""
    try:
        return read_bounded(path, most_bytes).decode("utf-8", errors)
    except UnicodeDecodeError:
        raise BoundedReadError("is not text in UTF-8") from None


def read_bounded_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Its JSON value. Raises as `read_bounded`, and BoundedReadError for what is not JSON or nested too deeply."""
    return parse_json(read_bounded_text(path, most_bytes))


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises BoundedReadError: it is not JSON, nested more than `MOST_DEPTH` deep, or has half a character: Python's
    reader takes a lone surrogate, and whoever prints it fails.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise BoundedReadError(_TOO_DEEP) from None
    except ValueError as error:
        raise BoundedReadError(f"is not JSON: {error}") from None
    if text.count("[") + text.count("{") > MOST_DEPTH and _is_deep(value):
        raise BoundedReadError(_TOO_DEEP)
    if ("\\ud" in text or "\\uD" in text) and not _has_whole_characters(value):
        raise BoundedReadError("is not JSON: a text in it has half a character (a lone surrogate)")
    return value


def read_lines(path: Path, most_bytes: int = MOST_LINE_BYTES) -> Iterator[str]:
    """The lines of a regular file without their ends, one at a time. Bytes that are not UTF-8 become �; of a line that
    is longer than `most_bytes` only so much is given.

    Raises:
        OSError: it is missing or may not be read.
        BoundedReadError: it is a folder, a pipe or a device, or more than 64 times `most_bytes` are one line.
    """
    with open_regular(path) as file:
        while line := file.readline(most_bytes):
            if len(line) == most_bytes and not line.endswith(b"\n"):
                _skip_line(file, most_bytes)
            yield line.decode("utf-8", "replace").rstrip("\r\n")


def read_end(path: Path, most_bytes: int) -> bytes:
    """The last bytes of a regular file, at most so many, however long it is. Raises as `open_regular`."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def json_encoding(start: bytes) -> str | None:
    """The encoding of a JSON text by its first four bytes; None: UTF-8 without a mark. Source: RFC 4627, 3."""
    marked = next((encoding for mark, encoding in _MARKS if start.startswith(mark)), None)
    return marked or _WITHOUT_MARK.get(tuple(int(byte != 0) for byte in start[:4]))


def why_unread(error: OSError | ValueError) -> str:
    """What a failed reading says, in one line and without the file's name; of another user's file, whom to ask."""
    if isinstance(error, PermissionError) and isinstance(error.filename, (str, Path)):
        return f"{error.strerror}{whose(Path(error.filename))}"
    return (isinstance(error, OSError) and error.strerror) or (str(error).splitlines() or ["it is damaged"])[0]


def _skip_line(file: BinaryIO, most_bytes: int) -> None:
    for _ in range(64):  # where a machine lost power, a file may end in some MB of zeros
        rest = file.readline(most_bytes)
        if len(rest) < most_bytes or rest.endswith(b"\n"):
            return
    raise BoundedReadError(f"has a line of more than {_amount(64 * most_bytes)}, the limit for a file of this kind")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = list(chain.from_iterable(inside))
        if not level:
            return False
    return True


def _has_whole_characters(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _amount(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a device"  # a socket cannot be opened at all
