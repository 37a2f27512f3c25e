"""Ends what is left of a training on this machine when its launcher has ended: ranks that were stuck, and ranks whose
launcher or container was killed, which then belong to nobody.
"""

from __future__ import annotations

import os
import signal
import time

from harness.common.run_folder.heartbeats import MEMORY
from harness.common.system import processes

_WRITES_S = 10.0  # a rank that is asked to stop may write its trace for so long
_IDLE_S = 3.0  # between two looks at ranks that were stuck
_IDLE_NS, _IDLE_BYTES = 300_000_000, 500_000  # CPU time and bytes between them: less is no work


def kill_stuck(heartbeats: str) -> None:
    """Kill the ranks that were asked to stop and do nothing, as one that is stuck, which hears no TERM; one that writes
    what it recorded is left to it. Returns when no rank is left. heartbeats: as below."""
    before: dict[int, processes.Usage] = {}
    while now := {pid: processes.usage(pid) for pid in _of_run(heartbeats) if _is_rank(pid)}:
        idle = [pid for pid, usage in now.items() if pid in before and _did_nothing(pid, before[pid], usage)]
        processes.signal_all(idle, signal.SIGKILL)
        before = now
        time.sleep(_IDLE_S)


def _did_nothing(pid: int, before: processes.Usage, now: processes.Usage) -> bool:
    """Whether a process and those below it neither compute nor read or write, but for what the observer does in it."""
    state = processes.stat_of(pid)
    busy = now.below_runs or (state is not None and state.state in "RD")
    return not busy and now.cpu_ns - before.cpu_ns < _IDLE_NS and now.io_bytes - before.io_bytes < _IDLE_BYTES


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
    processes.signal_all([pid for pid in processes.pids() if word in processes.words_of(pid)], signal.SIGKILL)


def orphans(heartbeats: str, shell: int) -> list[int]:
    """The run's processes that are not below the node's program."""
    ours = {os.getpid(), shell, *processes.descendants(shell)}
    return [pid for pid in _of_run(heartbeats) if pid not in ours and processes.lives(pid)]


def _of_run(heartbeats: str) -> list[int]:
    """The processes with this folder in their environment."""
    mark = f"{MEMORY}={heartbeats}".encode()
    return [pid for pid in processes.pids() if mark in processes.environment(pid)]


def wait_for_ranks(heartbeats: str, most_s: float) -> None:
    """Wait for the ranks that outlive the launcher that started them, as they write their traces."""
    end_s = time.monotonic() + most_s
    while any(map(_is_rank, orphans(heartbeats, os.getpid()))) and time.monotonic() < end_s:
        time.sleep(0.1)


def _is_rank(pid: int) -> bool:
    return any(each.startswith(b"RANK=") for each in processes.environment(pid))
