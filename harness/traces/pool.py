"""Worker processes for reading. Must not know traces or readers, so that a reader can use it too."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

KILLED = "was not read: its worker process was killed, probably because the memory was full"


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Worker processes that end silently on Ctrl-C.

    A fork starts them fastest, but is safe only while no other thread holds a lock.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn")
    return ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_DFL))
