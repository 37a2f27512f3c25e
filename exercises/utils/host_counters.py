"""What this rank's host thread lost while it trained: to other threads on its cores, and to Python's collector."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from harness.common.metrics_lines import StepCounters, as_ranges

SCHEDULER = Path(
    "/proc/thread-self/schedstat"
)  # time on a core, time ready and waiting for one, both in ns; slices
FILES = Path("/proc/self/io")  # its sixth line: write_bytes, what was written to files of a disk


class HostCounters:
    """Counts from one step's end to the next one's, for the thread that asks."""

    def __init__(self) -> None:
        self._collected_ns = 0
        self._collecting_since = 0
        self._last = self._now()
        gc.callbacks.append(self._collector)

    def of_step(self) -> StepCounters:
        """What was counted since the last time, or since the beginning."""
        before, self._last = self._last, self._now()
        waited, collected, written = (_less(now, then) for now, then in zip(self._last, before, strict=True))
        return StepCounters(waited, collected or 0, written, _cores())

    def close(self) -> None:
        """Count no more."""
        gc.callbacks.remove(self._collector)

    def _now(self) -> tuple[int | None, int, int | None]:
        return waited_ns(), self._collected_ns, _number(FILES, 11)

    def _collector(self, phase: str, info: object) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected_ns += now - self._collecting_since


def waited_ns() -> int | None:
    """How long the calling thread has waited for a core since it began; None where Linux does not count it."""
    return _number(SCHEDULER, 1)


def _cores() -> str | None:
    return as_ranges(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _less(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


def _number(file: Path, word: int) -> int | None:
    """A number in a file of the kernel; None where there is none."""
    try:
        return int(file.read_text(encoding="ascii").split()[word])
    except (OSError, ValueError, IndexError):
        return None
