"""Cgroups of the tests' own, in the hierarchies that this machine has: made, limited, and always removed.

Knows the kernel's files and nothing of the harness, so that it can check what the harness says about a process.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path("/sys/fs/cgroup")
V1, V2 = "v1", "v2"


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of the hierarchy `version`."""

    path: Path
    version: str

    def add(self, pid: int) -> None:
        """Move a process into it."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        """The most bytes of memory that what is in it may have together."""
        name = "memory.limit_in_bytes" if self.version == V1 else "memory.max"
        (self.path / name).write_text(str(size))

    def below(self, name: str) -> Cgroup:
        """A cgroup in this one; in the new hierarchy its memory is accounted for as part of this one's."""
        path = self.path / name
        path.mkdir()
        return Cgroup(path, self.version)

    def remove(self) -> None:
        """End what is in it and in those below it, and remove them."""
        for folder in (*(each for each in self.path.iterdir() if each.is_dir()), self.path):
            procs = folder / "cgroup.procs"
            wait_until(partial(_is_removed, folder), f"the end of what is in {folder}", procs.read_text)


def _is_removed(folder: Path) -> bool:
    """Kills what is in a cgroup, and removes it. A process that is ending keeps it busy, when it is listed no more."""
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


@contextmanager
def cgroup(version: str) -> Iterator[Cgroup]:
    """A new cgroup whose memory can be limited; skips where this machine allows none."""
    made = Cgroup(_root(version) / f"harness-test-{os.getpid()}-{time.monotonic_ns()}", version)
    try:
        made.path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of the tests' own can be made: {error}")
    try:
        yield made
    finally:
        made.remove()


def _root(version: str) -> Path:
    """The hierarchy's folder; skips where there is none."""
    if version == V1:
        if not (ROOT / "memory" / "cgroup.procs").is_file():
            pytest.skip("this machine has no cgroups of version 1 with the controller memory")
        return ROOT / "memory"
    found = next((root for root in (ROOT, ROOT / "unified") if (root / "cgroup.controllers").is_file()), None)
    if found is None:
        pytest.skip("this machine has no cgroups of version 2")
    given = (found / "cgroup.subtree_control").read_text().split()
    if "memory" not in given:
        pytest.skip(f"cgroups of version 2 in {found} do not get the controller memory")
    return found
