"""One builder at a time, also between the login nodes of a shared folder.

The lock is a symbolic link whose target is its owner: made in one step that exactly one process wins, on NFS
and Lustre as well, where flock is often missing or holds on one host only. See decision 002.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from errors import BootstrapError
from say import TICK_S, say

SILENT_S = 60.0  # an owner that has not touched its lock for this time is dead: it touches it every TICK_S
POLL_S = 0.5


@dataclass(frozen=True)
class Owner:
    """Who holds the lock."""

    user: str
    host: str
    pid: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container or a batch system may run a uid that has no name
            user = str(os.getuid())
        return cls(user, socket.gethostname(), os.getpid())

    @classmethod
    def parse(cls, text: str) -> Owner:
        """The owner that `str` wrote; with pid 0 if the text is not one."""
        user, _, rest = text.partition("@")
        host, _, pid = rest.rpartition(":")
        return cls(user, host, int(pid) if pid.isdigit() else 0)

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.pid}"


@dataclass(frozen=True)
class Lock:
    """A held lock; `beat` shows the others that its owner lives."""

    path: Path

    @classmethod
    @contextlib.contextmanager
    def beside(cls, venv: Path) -> Iterator[Lock]:
        """Hold the lock of `venv`; wait while another has it. Raises BootstrapError: its folder is not writable."""
        lock = cls(venv.with_name(venv.name + ".lock"))
        lock._acquire()
        try:
            yield lock
        finally:
            if _owner(lock.path) == str(Owner.me()):
                lock.path.unlink(missing_ok=True)

    def beat(self) -> None:
        """Show that the owner lives."""
        with contextlib.suppress(OSError):  # another process took the lock over
            os.utime(self.path, follow_symlinks=False)

    def _acquire(self) -> None:
        waited_s, said_s = 0.0, -TICK_S
        while not self._take():
            owner = _owner(self.path)
            if owner and self._abandoned(owner):
                self._break(owner)
                continue
            if owner and waited_s - said_s >= TICK_S:
                said_s = waited_s
                say(f"waiting for {owner}, who is installing into {self.path.parent}: {waited_s:.0f} s")
            time.sleep(POLL_S)
            waited_s += POLL_S

    def _take(self) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.symlink_to(str(Owner.me()))
        except FileExistsError:
            return False
        except OSError as error:
            raise BootstrapError(
                f"cannot write in {self.path.parent} ({error.strerror}); {_otherwise(self.path)}"
            ) from error
        return True

    def _abandoned(self, text: str) -> bool:
        owner, me = Owner.parse(text), Owner.me()
        if (owner.user, owner.host) == (me.user, me.host) and not _alive(owner.pid):
            return True
        with contextlib.suppress(FileNotFoundError):
            return time.time() - self.path.lstat().st_mtime > SILENT_S
        return False

    def _break(self, owner: str) -> None:
        # Only one process can rename the lock. A process that moved a newer lock by mistake puts it back.
        aside = self.path.with_name(f"{self.path.name}.{Owner.me()}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(aside)
            if _owner(aside) == owner:
                say(f"{owner} stopped in the middle of installing; taking over.")
                aside.unlink()
            else:
                aside.rename(self.path)


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
    ask = "ask its owner to run `bash slurm.sh --install train`"
    return f"{what} incomplete or out of date: {ask}, or {own}"


def _owner(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
