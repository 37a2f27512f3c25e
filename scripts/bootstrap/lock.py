"""One builder at a time, also between the login nodes of a shared folder.

The lock is a symbolic link whose target is its owner: made in one step that exactly one process wins, on NFS
and Lustre as well, where flock is often missing or holds on one host only. See decision 002.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from say import TICK_S, BootstrapError, say

SILENT_S = 60.0  # an owner that has not touched its lock for this time is dead: it touches it every TICK_S
POLL_S = 0.5


@contextlib.contextmanager
def locked(venv: Path) -> Iterator[None]:
    """Hold the lock of `venv`, and show the others that we live; wait while another has it.

    Raises BootstrapError: its folder is not writable.
    """
    lock, done = venv.with_name(venv.name + ".lock"), threading.Event()
    user = os.environ.get("LOGNAME") or os.environ.get("USER") or os.getuid()
    me = f"{user}@{socket.gethostname()}:{os.getpid()}"

    def beat() -> None:
        while not done.wait(TICK_S):
            with contextlib.suppress(OSError):  # another process took the lock over
                os.utime(lock, follow_symlinks=False)

    waited_s = 0.0
    while not _take(lock, me):
        owner = _owner(lock)
        if owner and _is_abandoned(lock, owner, me):
            _break(lock, owner, me)
            continue
        if owner and waited_s % TICK_S == 0:
            say(f"waiting for {owner}, who is installing into {lock.parent}: {waited_s:.0f} s")
        time.sleep(POLL_S)
        waited_s += POLL_S
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        if _owner(lock) == me:
            lock.unlink(missing_ok=True)


def _take(lock: Path, me: str) -> bool:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.symlink_to(me)
    except FileExistsError:
        return False
    except OSError as error:
        raise BootstrapError(f"cannot write in {lock.parent} ({error.strerror}); {_otherwise(lock)}") from error
    return True


def _is_abandoned(lock: Path, owner: str, me: str) -> bool:
    place, _, pid = owner.rpartition(":")
    if place == me.rpartition(":")[0] and not Path("/proc", pid).exists():
        return True
    with contextlib.suppress(FileNotFoundError):
        return time.time() - lock.lstat().st_mtime > SILENT_S
    return False


def _break(lock: Path, owner: str, me: str) -> None:
    # Only one process can rename the lock. A process that moved a newer lock by mistake puts it back.
    aside = lock.with_name(f"{lock.name}.{me}")
    with contextlib.suppress(FileNotFoundError):
        lock.rename(aside)
        if _owner(aside) == owner:
            say(f"{owner} stopped in the middle of installing; taking over.")
            aside.unlink()
        else:
            aside.rename(lock)


def _otherwise(lock: Path) -> str:
    """What to do where we may not write: a user of a shared environment cannot bring it up to date."""
    own = "set HARNESS_VENV to a folder of your own, for example HARNESS_VENV=~/harness-venv."
    course, shared = os.environ.get("HARNESS_COURSE"), lock.with_suffix("")
    if course is not None and "HARNESS_VENV" in course.split():
        what = f"configs/course.env names {shared}, which is"
    elif course is not None and not os.environ.get("HARNESS_VENV"):
        what = f"{shared} is for all who share this checkout (it has a configs/course.env), and is"
    else:
        return own
    return f"{what} incomplete or out of date: ask its owner to run `bash slurm.sh --install train`, or {own}"


def _owner(lock: Path) -> str:
    try:
        return str(lock.readlink())
    except OSError:
        return ""
