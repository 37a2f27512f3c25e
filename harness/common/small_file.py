"""Read the small files of a run, which another process or person wrote: a regular file, of bounded size and depth.

What is not so gives one sentence. A FIFO would wait for ever, a device never end, and deep JSON exhaust the stack.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20  # a summary of a thousand ranks has some 20 MB
MOST_DEPTH = 64


class SmallFileError(ValueError):
    """The file is not what it should be; the sentence does not name it."""


def read_small(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: it is missing or may not be read.
        SmallFileError: it is a folder, a pipe or a device, or longer than `most_bytes`.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a FIFO without a writer opens at once
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SmallFileError(f"is {_kind(mode)}, not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise SmallFileError(f"is longer than {most_bytes >> 20} MiB, which no file of this kind is")
    return content


def read_small_text(path: Path, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """Its text; `errors` as in `bytes.decode`. Raises as `read_small`; UnicodeDecodeError is a ValueError too."""
    return read_small(path, most_bytes).decode("utf-8", errors)


def read_small_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Its JSON value. Raises as `read_small`, and SmallFileError for what is not JSON or nested too deeply."""
    return parse_json(read_small_text(path, most_bytes))


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises SmallFileError: it is not JSON, or nested more than `MOST_DEPTH` deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise SmallFileError(_too_deep()) from None
    except ValueError as error:
        raise SmallFileError(f"is not JSON: {error}") from None
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
        if not level:
            return value
    raise SmallFileError(_too_deep())


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _too_deep() -> str:
    return f"is JSON nested more than {MOST_DEPTH} deep, which no file of this kind is"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a device"  # a socket cannot be opened at all
