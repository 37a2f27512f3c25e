"""A file that is written as a whole or not at all. Needs the standard library only, as a training's own Python does."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object], mode: int | None = None) -> None:
    """Let `write` make the file under a temporary name beside `path`, then rename it: readers see all of it or none.

    The temporary name has this machine's name and this process's number, so that no two writers share one. mode: who
    may read the file; None: as the umask has it. What `write` raises is raised again, and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        if mode is not None:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode, exist_ok=False)  # before it has any content
        write(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # it may not have been made
            temporary.unlink()
        raise


def write_whole_text(path: Path, text: str, mode: int | None = None) -> None:
    """As `write_whole`, for a text in UTF-8."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), mode)
