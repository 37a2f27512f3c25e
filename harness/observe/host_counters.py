"""What this rank's host thread lost while it trained: to other threads on its cores, to Python's collector, to whoever
stopped its process."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from harness.common.metrics_lines import StepCounters, as_ranges

SCHEDULER = Path(
    "/proc/thread-self/schedstat"
)  # time on a core, time ready and waiting for one, both in ns; slices
FILES = Path("/proc/self/io")  # is there if Linux counts what a process writes to files of a disk
BLOCK = 512  # bytes of a block that getrusage counts


class Counts(NamedTuple):
    """What was counted until a moment; None: the system does not say it. cores: those the thread may use."""

    waited_ns: int | None
    collected_ns: int
    written_bytes: int | None
    page_faults: int
    continued: int
    cores: AbstractSet[int] | None


class HostCounters:
    """Counts from one step's end to the next one's, for the thread that makes it.

    `now` is called between two steps of somebody's training, so it only reads; `between` says what it means.
    """

    def __init__(self) -> None:
        self._scheduler, self._counts_files = _opened(SCHEDULER), FILES.exists()
        self._collected_ns = 0
        self._collecting_since = 0
        self._continued = 0
        gc.callbacks.append(self._collector)
        self._handled = _handle_continuing(self._count_continuing)

    def now(self) -> Counts:
        """All that was counted so far, for the thread that made this."""
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        used = resource.getrusage(resource.RUSAGE_SELF)
        written = used.ru_oublock * BLOCK if self._counts_files else None
        waited = _number(self._scheduler, 1)
        return Counts(waited, self._collected_ns, written, used.ru_minflt, self._continued, cores)

    def between(self, then: Counts, now: Counts) -> StepCounters:
        """What was counted between two moments."""
        return StepCounters(
            core_wait_ns=_less(now.waited_ns, then.waited_ns),
            collector_ns=now.collected_ns - then.collected_ns,
            written_bytes=_less(now.written_bytes, then.written_bytes),
            page_faults=now.page_faults - then.page_faults,
            continued=now.continued - then.continued if self._handled else None,
            cores=None if now.cores is None else as_ranges(now.cores),
        )

    def close(self) -> None:
        """Count no more."""
        gc.callbacks.remove(self._collector)
        _close(self._scheduler)
        self._scheduler = None
        if self._handled:
            signal.signal(signal.SIGCONT, signal.SIG_DFL)

    def _count_continuing(self, signum: int, frame: object) -> None:
        self._continued += 1

    def _collector(self, phase: str, info: object) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected_ns += now - self._collecting_since


def _handle_continuing(handler: Callable[[int, FrameType | None], None]) -> bool:
    """Whether SIGCONT, which continues a stopped process, calls `handler` from now on: nobody else may handle it."""
    free = signal.getsignal(signal.SIGCONT) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGCONT, handler)
    return True


def waited_ns() -> int | None:
    """How long the calling thread has waited for a core since it began; None if Linux does not count it."""
    file = _opened(SCHEDULER)
    try:
        return _number(file, 1)
    finally:
        _close(file)


def _less(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


def _opened(file: Path) -> int | None:
    """To be read again and again, by the thread that opened it; None if there is no such file."""
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _close(file: int | None) -> None:
    if file is not None:
        os.close(file)


def _number(file: int | None, word: int) -> int | None:
    """A number in an open file of the kernel; None if there is none."""
    try:
        return None if file is None else int(os.pread(file, 400, 0).split()[word])
    except (OSError, ValueError, IndexError):
        return None
