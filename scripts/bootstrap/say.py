"""The messages that a waiting person sees: sentences and progress on stderr."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

TICK_S = 10.0  # often enough to show that it works, rare enough for a log file
TERMINAL_TICK_S = 1.0  # where the line replaces the one before


class BootstrapError(Exception):
    """What went wrong and what to do about it, in one sentence."""


def say(sentence: str) -> None:
    """One line on stderr, with slurm.sh's name before it."""
    erase = "\033[K" if sys.stderr.isatty() else ""  # a progress line may stand there
    print(f"{erase}slurm.sh: {sentence}", file=sys.stderr, flush=True)


def agreed(question: str) -> bool:
    """The answer of the person at the terminal that shows our lines; yes where there is none."""
    if not sys.stderr.isatty():
        return True
    try:
        with Path("/dev/tty").open(encoding="utf-8") as terminal:  # standard input is empty
            print(f"slurm.sh: {question} [Y/n] ", end="", file=sys.stderr, flush=True)
            return terminal.readline().strip().lower() in ("", "y", "yes")
    except OSError:
        return True


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
