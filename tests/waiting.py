"""How long a test waits for another process, and for what: a state that can be reached.

No limit is a claim about speed. It ends a wait that would never end, so it scales with the machine: by a factor that is
measured once in a session, and handed to all of its processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LIMIT_S = 120.0  # of one wait, on an idle machine of today: ten times as long as any of them takes there
SLOWNESS = "HARNESS_TESTS_SLOWNESS"
_REFERENCE_NS = 280_000_000  # what `_work` takes on an idle core of today
_MOST = 10.0


def slowness() -> float:
    """How many times as long as on an idle machine of today a piece of work takes here: 1 to 10."""
    if SLOWNESS not in os.environ:
        os.environ[SLOWNESS] = f"{min(_MOST, max(1.0, _work_ns() / _REFERENCE_NS)):.2f}"
    return float(os.environ[SLOWNESS])


def limit_s(seconds: float = LIMIT_S) -> float:
    """A limit for this machine; seconds: on an idle one of today."""
    return seconds * slowness()


def wait_until(
    condition: Callable[[], object], what: str, said: Callable[[], object] = str, seconds: float = LIMIT_S
) -> None:
    """Returns when the condition holds. said: what the process that is waited for has said so far.

    Raises AssertionError: it did not come to hold; with `what` and what was said.
    """
    limit = limit_s(seconds)
    end_s, pause_s = time.monotonic() + limit, 0.02
    while not condition():
        assert time.monotonic() < end_s, f"waited {limit:.0f} s for {what}\n{said()}"
        time.sleep(pause_s)  # what is waited for needs the core, and to look may start a program
        pause_s = min(1.2 * pause_s, 0.4)


def _work_ns() -> int:
    began_ns = time.perf_counter_ns()
    total = 0
    for number in range(10_000_000):
        total += number % 7
    return time.perf_counter_ns() - began_ns
