"""Ends what is left of a training on this machine when its launcher has ended: ranks that were stuck, and ranks whose
launcher or container was killed, which then belong to nobody.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from harness.common.run_folder.heartbeats import MEMORY
from harness.common.run_folder.run_files import EVIDENCE
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system import processes

_WRITES_S = 10.0  # a rank that is asked to stop may write its trace for so long


def kill_stuck(run: Path) -> None:
    """Kill what is left on this machine of ranks that were stuck, and of what they started."""
    for path in EVIDENCE.paths(run):
        with suppress(UnreadFileError, OSError, ValueError, KeyError, TypeError):
            content = EVIDENCE.as_json.read(path)
            ranks = content["ranks"] if content["host"] == os.uname().nodename else []
            for process in [*ranks, *(child for rank in ranks for child in rank["children"])]:
                now = processes.stat_of(int(process["pid"]))
                if now is not None and now.started == process["started"]:
                    os.kill(int(process["pid"]), signal.SIGKILL)


def end_orphans(heartbeats: str, shell: int) -> None:
    """Ask the training's processes that are not below the node's program any more to stop; kill those that do not.

    heartbeats: the folder that only this run's processes on this node have in their environment. shell: the node's
    program.
    """
    processes.signal_all(orphans(heartbeats, shell), signal.SIGTERM)
    end_s = time.monotonic() + _WRITES_S
    while (left := orphans(heartbeats, shell)) and time.monotonic() < end_s:
        time.sleep(0.1)
    processes.signal_all(left, signal.SIGKILL)


def end_agent(session: str) -> None:
    """Kill the agent of an nsys that has ended without it: it would wait for its nsys for ever."""
    word = f"--session-name={session}".encode()
    processes.signal_all([pid for pid in processes.pids() if word in _words(pid)], signal.SIGKILL)


def _words(pid: int) -> list[bytes]:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended meanwhile
        return []


def orphans(heartbeats: str, shell: int) -> list[int]:
    """The processes with this folder in their environment that are not below the node's program."""
    ours = {os.getpid(), shell, *processes.descendants(shell)}
    mark = f"{MEMORY}={heartbeats}".encode()
    marked = [pid for pid in processes.pids() if pid not in ours and mark in processes.environment(pid)]
    return [pid for pid in marked if processes.lives(pid)]


def wait_for_ranks(heartbeats: str, most_s: float) -> None:
    """Wait for the ranks that outlive the launcher that started them, as they write their traces."""
    end_s = time.monotonic() + most_s
    while any(map(_is_rank, orphans(heartbeats, os.getpid()))) and time.monotonic() < end_s:
        time.sleep(0.1)


def _is_rank(pid: int) -> bool:
    return any(each.startswith(b"RANK=") for each in processes.environment(pid))
