"""A wait of a test for another process. It ends: a test that waits for ever stops all others."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 300.0  # on a machine that runs much else


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Raises AssertionError: the condition does not come to hold."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.01)
