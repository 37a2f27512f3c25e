"""What a rank still writes when it is asked to end: a recording that has begun is kept."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

PATIENCE_S = (
    10.0  # for a main thread that is inside a call and runs no Python; then the process ends as it would have
)


def on_termination(write: Callable[[], None]) -> None:
    """Call `write` at SIGTERM, then end as without it. A script that handles SIGTERM itself is left alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before != -1:  # the script's event loop listens there
        signal.set_wakeup_fd(before)
        return
    done = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        try:
            write()
        finally:
            done.set()
            _die()

    def after_a_while() -> None:
        while os.read(reading, 1) != bytes([signal.SIGTERM]):
            pass
        if not done.wait(PATIENCE_S):
            _die()

    os.register_at_fork(after_in_child=_as_before)
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=after_a_while, name="observer end", daemon=True).start()


def _die() -> None:
    """From any thread: Python's own `signal.signal` is for the main one."""
    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)


def _as_before() -> None:
    """A child has this process's pipe, and must not end it by what it is told itself."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
