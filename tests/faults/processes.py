"""The processes of a run, found by the runs folder in their environment: each fault's run has a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that lives: its id and its words."""

    pid: int
    words: str


def processes_of(runs: Path) -> list[Process]:
    """Whatever was started with this runs folder, without zombies and without this process."""
    mark = f"HARNESS_RUNS={runs}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
        if int(folder.name) != os.getpid():
            found.append(Process(int(folder.name), words))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie is dead."""
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
