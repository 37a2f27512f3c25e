"""A process that no launcher has made a rank, and that waits before it trains: it shows itself as the rank that it is,
so that a start that never ends is told. Knows nothing of steps."""

from __future__ import annotations

import multiprocessing.process
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from harness.common.run_folder.heartbeats import PYTHON_SIDE
from harness.observe import heartbeat
from harness.observe.lines import innermost, looking_at_frames
from harness.observe.watch import rank_now

LOOK_S = 20.0  # between two looks
WORKS = 0.2  # of a core: a process that wants less waits


def watch_start() -> None:
    """Look from a thread: a main thread that waits in C runs no Python."""
    threading.Thread(target=_run, name="observer start", daemon=True).start()


def _run() -> None:
    while not heartbeat.has_begun():
        before_s = _wanted_s()
        time.sleep(LOOK_S)
        if _wanted_s() - before_s < WORKS * LOOK_S:
            with looking_at_frames() as frames:
                found = rank_of(frames.get(threading.main_thread().ident or 0))
            if found is not None and not heartbeat.has_begun():
                heartbeat.begin(*found)


def _wanted_s() -> float:
    """The time on a core, and the time ready for one that others had: on a busy machine a process that computes may
    get next to none. Linux without schedstat says the first alone."""
    ready_ns = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            ready_ns += int(thread.read_text(encoding="ascii").split()[1])
    return time.process_time() + ready_ns / 1e9


def rank_of(frame: FrameType | None) -> tuple[int, int, int] | None:
    """(rank, world size, local rank) of this process by what its main thread waits in; None: it is no rank, as a
    launcher, a program that has started Python programs, or a data loader's worker."""
    if os.environ.get("RANK", "").isdecimal():  # its script has set it
        return rank_now()
    meets = frame
    while meets is not None:
        code, local = meets.f_code, meets.f_locals
        if code.co_name == "init_process_group" and code.co_filename.endswith(PYTHON_SIDE):
            rank, world = local.get("rank"), local.get("world_size")
            if isinstance(rank, int) and isinstance(world, int) and 0 <= rank < world:
                return rank, world, rank_now()[2]
            return None
        meets = meets.f_back
    if multiprocessing.process.parent_process() is not None or innermost(frame) is None or _has_python_below():
        return None
    return rank_now()


def _has_python_below() -> bool:
    for thread in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for child in thread.read_text(encoding="ascii").split():
                words = Path(f"/proc/{child}/cmdline").read_bytes()
                is_python = Path(f"/proc/{child}/exe").resolve().name.startswith("python")
                if is_python and b"resource_tracker" not in words:
                    return True
    return False
