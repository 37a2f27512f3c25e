"""What this rank's host thread lost while it trained: to other threads on its cores, and to Python's collector."""

from __future__ import annotations

import gc
import time
from pathlib import Path

from harness.common.metrics_lines import StepCounters

SCHEDULER = Path(
    "/proc/thread-self/schedstat"
)  # time on a core, time ready and waiting for one, both in ns; slices


class HostCounters:
    """Counts from one step's end to the next one's, for the thread that asks."""

    def __init__(self) -> None:
        self._collected_ns = 0
        self._collecting_since = 0
        self._last = (_waited_ns(), 0)
        gc.callbacks.append(self._collector)

    def of_step(self) -> StepCounters:
        """What was counted since the last time, or since the beginning."""
        waited, collected = now = (_waited_ns(), self._collected_ns)
        before, self._last = self._last, now
        known = waited is not None and before[0] is not None
        return StepCounters(
            core_wait_ns=waited - before[0] if known else None,  # type: ignore[operator]  # both are known
            collector_ns=collected - before[1],
        )

    def close(self) -> None:
        """Count no more."""
        gc.callbacks.remove(self._collector)

    def _collector(self, phase: str, info: object) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected_ns += now - self._collecting_since


def _waited_ns() -> int | None:
    """How long this thread was ready to run and had no core; None where the kernel does not count it."""
    try:
        return int(SCHEDULER.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
