"""The messages that a waiting person sees: sentences and progress on stderr."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

TICK_S = 10.0  # often enough to show that it works, rare enough for a log file
TERMINAL_TICK_S = 1.0


def say(sentence: str) -> None:
    """One line on stderr, with slurm.sh's name before it."""
    erase = "\033[K" if sys.stderr.isatty() else ""  # a progress line may stand there
    print(f"{erase}slurm.sh: {sentence}", file=sys.stderr, flush=True)


class Progress:
    """Prints every few seconds what is done and for how long; `beat` is called at each tick."""

    def __init__(self, what: str, beat: Callable[[], None] = lambda: None) -> None:
        self.what = what
        self.detail = ""
        self._beat = beat
        self._done = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        say(f"{self.what} …")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if error is None:
            say(f"{self.what}: done in {self.elapsed_s:.0f} s")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    def _tick(self) -> None:
        terminal = sys.stderr.isatty()
        while not self._done.wait(TERMINAL_TICK_S if terminal else TICK_S):
            self._beat()
            text = f"{self.what}: {self.elapsed_s:.0f} s" + (f" ({self.detail})" if self.detail else "")
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                print("\r\033[K" + f"slurm.sh: {text}"[:width], end="\r", file=sys.stderr, flush=True)
            else:
                say(text)
