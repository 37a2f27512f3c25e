"""Steps of a program that shows none (no optimizer, backward pass, module or DataLoader): seconds stand in for them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

PATIENCE_S, STEP_S = 60.0, 1.0  # before the clock is used; a step


def by_clock(tick: Callable[[], bool]) -> None:
    """Call `tick` in the main thread, after a while and then each second, until it returns False.

    A profiler of PyTorch records the thread that starts it, so a thread of our own cannot do it.
    """
    wanted = [True]

    def call(_nothing: object) -> int:
        wanted[0] = tick()
        return 0

    pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)

    def run() -> None:
        time.sleep(PATIENCE_S)
        while wanted[0]:
            ctypes.pythonapi.Py_AddPendingCall(pending, None)
            time.sleep(STEP_S)

    threading.Thread(target=run, name="observer clock", daemon=True).start()
