"""Shows on stderr how much of a piece of work is done, once it takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from harness.common.display.printable import printable, unguarded

OnProgress = Callable[[int, int], None]  # (done, total), of bytes or of the unit of a Progress

_PATIENCE_S = 1.0
_TERMINAL_INTERVAL_S = 0.2
_LOG_INTERVAL_S = 10.0


def silent(done: int, total: int) -> None:
    """No progress is shown."""


class ProgressLine:
    """An `OnProgress` that writes one line, rewritten in place on a terminal. Used as a context manager.

    `unit`: what is counted, if not bytes.
    """

    def __init__(self, doing: str, stream: TextIO | None = None, unit: str | None = None) -> None:
        self._doing = printable(doing)
        self._unit = unit
        self._stream = unguarded(stream if stream is not None else sys.stderr)
        self._terminal = self._stream.isatty()
        self._next = time.monotonic() + _PATIENCE_S
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        """Note that `done` of `total` are done."""
        if total:
            in_mb = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
            self.say(f"{self._doing}: {in_mb if self._unit is None else f'{done} of {total} {self._unit}'}")

    def say(self, line: str) -> None:
        """Show a line, if enough time has passed since the last one: for work whose size is not known."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_TERMINAL_INTERVAL_S if self._terminal else _LOG_INTERVAL_S)
        self._shown = True
        self._write(f"\r{line}\x1b[K" if self._terminal else f"{line}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown and self._terminal:
            self._write("\r\x1b[K")
