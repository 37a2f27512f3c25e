"""The messages that a waiting person sees: sentences and progress on stderr."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator

TICK_S = 10.0  # often enough to show that it works, rare enough for a log file
TERMINAL_TICK_S = 1.0  # where the line replaces the one before


class BootstrapError(Exception):
    """What went wrong and what to do about it, in one sentence."""


def say(sentence: str) -> None:
    """One line on stderr, with slurm.sh's name before it."""
    erase = "\033[K" if sys.stderr.isatty() else ""  # a progress line may stand there
    print(f"{erase}slurm.sh: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(what: str) -> Iterator[list[str]]:
    """Print every few seconds what is done, for how long, and the last line of the yielded list."""
    details, done, begin = [""], threading.Event(), time.monotonic()
    terminal = sys.stderr.isatty()

    def tick() -> None:
        while not done.wait(TERMINAL_TICK_S if terminal else TICK_S):
            text = f"{what}: {time.monotonic() - begin:.0f} s" + f" ({details[-1]})" * bool(details[-1])
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                print("\r\033[K" + f"slurm.sh: {text}"[:width], end="\r", file=sys.stderr, flush=True)
            else:
                say(text)

    say(f"{what} …")
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield details
    finally:
        done.set()
        thread.join()
    say(f"{what}: done in {time.monotonic() - begin:.0f} s")
