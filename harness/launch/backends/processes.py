"""The processes of this machine, as /proc shows them: whose they are, and how they are ended. Knows no run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LAST_S = 10.0  # for what a killed script leaves behind, between the request to end and the kill


class Process(NamedTuple):
    """A process that lives: its own id, its parent's, and its session's."""

    pid: int
    parent: int
    session: int


def is_alive(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    return _read(pid) is not None


def was_started_with(pid: int, path: Path) -> bool:
    """True when process `pid` lives and has an argument that ends like `path`, whose start may be a link."""
    end = "/".join(("", *path.parts[-2:])).encode()
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    if not words:  # a zombie, a thread of the kernel, or so new that its words are not there yet
        return is_alive(pid) and _has_program(pid)
    return any(word.endswith(end) for word in words.split(b"\0"))


def below(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    everyone = list(_everyone())
    found = [pid]
    for parent in found:  # grows as it is read
        found += [each.pid for each in everyone if each.parent == parent]
    return found[1:]


def end_session(session: int) -> None:
    """End what is left of a session whose first process has ended: asked first, killed after LAST_S."""
    left = [each.pid for each in _everyone() if each.session == session]
    left += [child for pid in left for child in below(pid)]
    _send(signal.SIGTERM, left)
    end_s = time.monotonic() + LAST_S
    while any(map(is_alive, left)) and time.monotonic() < end_s:
        time.sleep(0.1)
    _send(signal.SIGKILL, [pid for pid in left if is_alive(pid)])


def _has_program(pid: int) -> bool:
    """False for a thread of the kernel: after a reboot one may have the number of a run's script."""
    try:
        return bool(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False


def _send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _everyone() -> Iterator[Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := _read(int(folder.name))) is not None:
            yield process


def _read(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, parent, _group, session = text[text.rindex(b")") + 1 :].split()[:4]  # the name may hold blanks
    return None if state in (b"Z", b"X") else Process(pid, int(parent), int(session))
