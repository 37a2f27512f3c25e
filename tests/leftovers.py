"""What a session of the tests has started ends with it, in whatever way it ends: also when it is killed.

The first pytest of a session marks its environment, which all that it starts inherits, and starts a keeper: this file
as a program, which waits for the end of that pytest, kills what has the mark and removes what `remove_at_the_end` was
told. Where scripts/run_tests.py runs, it names and ends the processes that are left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

SESSION = "HARNESS_TESTS_SESSION"  # a folder: in it are links to what is to be removed
OF_PART = "HARNESS_TESTS_PART"  # of scripts/run_tests.py
GRACE_S = 20.0  # in which a cluster's own keeper stops it, and a run that was told to stop does


def begin(grace_s: float = GRACE_S) -> None:
    """Mark this process and start its keeper, unless this session has one."""
    if SESSION in os.environ:
        return
    session = tempfile.mkdtemp(prefix="harness-tests-")
    quiet = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, "-I", __file__, session, str(os.getpid()), str(grace_s)],
        stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, env=unmarked(),
    )  # fmt: skip
    os.environ[SESSION] = session


def unmarked() -> dict[str, str]:
    """The environment of a process that outlives the session, because it ends something by itself."""
    return {name: value for name, value in os.environ.items() if name != SESSION}


def remove_at_the_end(folder: Path) -> None:
    """Remove the folder after the session, if it is still there, and before it what is mounted in it."""
    if SESSION in os.environ:
        name = str(folder).replace("/", "_")
        with suppress(FileExistsError):
            Path(os.environ[SESSION], name).symlink_to(folder)


def marked(session: str) -> list[int]:
    """The processes with the mark."""
    mark = f"{SESSION}={session}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _keep(session: str, parent: int, grace_s: float) -> None:
    # A fork of that pytest may hold a pipe of it, so its end shows nowhere else.
    _poll(lambda: os.getppid() != parent)
    has_runner = OF_PART in os.environ and b"run_tests.py" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    if not has_runner:
        end_s = time.monotonic() + grace_s
        _poll(lambda: not marked(session) or time.monotonic() > end_s)
        _poll(lambda: _kill(marked(session)))
    for link in Path(session).iterdir():
        folder = str(link.readlink())
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
        for mount in reversed([mount for mount in mounts if f"{mount}/".startswith(f"{folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=False, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(session, ignore_errors=True)


def _poll(condition: Callable[[], object]) -> None:
    """Without a limit: this program is there until then."""
    while not condition():
        Event().wait(0.5)


def _kill(pids: list[int]) -> bool:
    """Whether there was none; those that they have just started are found at the next look."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not pids


if __name__ == "__main__":
    _keep(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
