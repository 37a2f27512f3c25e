"""A series by its name: its folder, and the lock that lets one process run it.

Which runs there are, only the runs say: the folder holds no list of them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.common.errors import RequestError, WorkError
from harness.common.system.bounded_read import read_bounded_text
from harness.common.system.processes import exists
from harness.run import disk_error, make_shared, runs_root

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # some parallel file systems are mounted without them
_HOLDER = re.compile(r"process (\d+) on (.*)")


def refuse_name(name: str, source: str) -> None:
    """Raises RequestError: the name cannot be a folder's. source: the flag or file that gave it, for the message."""
    if not NAME.fullmatch(name):
        raise RequestError(
            f"{source}: got {name!r}, takes up to 80 letters, digits and ._- beginning with a letter or digit"
        )


def series_root() -> Path:
    return runs_root() / "series"


def series_folder(name: str) -> Path:
    """The folder of one series, which may not exist yet."""
    return series_root() / name


@contextmanager
def driving(name: str) -> Iterator[Path]:
    """Be the only process that drives the series; gives its folder, which is made.

    The lock is the kernel's, on a file: it ends with its process, however that ends, and no child inherits it.

    Raises WorkError: another process drives it, or the folder cannot be written.
    """
    folder = series_folder(name)
    try:
        make_shared(folder.parent)
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise disk_error(folder, error) from None
    try:
        _lock(descriptor, name, folder)
        yield folder
    finally:
        os.close(descriptor)


def holder_is_gone(folder: Path) -> bool:
    """Whether the process that last drove the series of this folder was one of this machine and has ended."""
    with suppress(OSError):
        held = _HOLDER.fullmatch(read_bounded_text(folder / "lock", errors="replace").strip())
        return held is not None and held[2] == socket.gethostname() and not exists(int(held[1]))
    return False


def _lock(descriptor: int, name: str, folder: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            raise WorkError(f"series {name} is being run by {holder}: wait for its end, or stop it") from None
        print(
            f"warning: {folder}: this file system has no locks: do not start a second process for series {name}",
            file=sys.stderr,
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
