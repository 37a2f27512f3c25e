"""Watches a run until it ends: on a screen that is drawn anew, as lines, or as JSON. Knows no scheduler.

Whoever calls it says how the run's state is asked.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

from harness.common.display.printable import unguarded
from harness.heartbeats.silent_nodes import SILENT_S
from harness.live.screen import as_json, as_line, screen
from harness.live.view import RunView

GRACE_S = 60.0  # so long, a run of which nobody knows the state may still go on
LEAST = (20, 5)  # columns and lines that are drawn on, however small the terminal is
ONCE = (100, 60)  # where there is no terminal
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[0m\x1b[K\n", "\x1b[J"


def watch_run(look: Callable[[], RunView], show: Callable[[RunView], object], interval_s: float) -> int:
    """Show the run again and again until it has ended; returns the exit code.

    A run whose state is unknown for GRACE_S has ended too, unless it has heartbeats.
    """
    next_s = known_s = time.monotonic()
    while True:
        view = look()
        show(view)
        if view.state.final:
            return exit_code(view)
        if not _is_lost(view):
            known_s = time.monotonic()
        elif time.monotonic() - known_s > GRACE_S:
            return 1
        next_s = max(next_s + interval_s, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))


def exit_code(view: RunView) -> int:
    """1 if the run has ended otherwise than completed."""
    return int(view.state.final and view.state.state != "completed")


def _is_lost(view: RunView) -> bool:
    """Whether nobody knows what it does."""
    nodes = view.live.nodes.values()
    return view.state.state == "unknown" and all(node.age_s(view.now_ns) > SILENT_S for node in nodes)


def has_screen() -> bool:
    """Whether there is a terminal that a screen can be drawn on."""
    return unguarded(sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def print_line(view: RunView) -> None:
    print(as_line(view), flush=True)


def print_json(view: RunView) -> None:
    print(as_json(view), flush=True)


def print_screen(view: RunView) -> None:
    """Print the screen below what the terminal shows."""
    _show("".join(f"{line}\n" for line in screen(view, *_size(), colour=unguarded(sys.stdout).isatty())))


def draw_screen(view: RunView) -> None:
    """Draw the screen over what the terminal shows. The cursor is then on the line below it."""
    _show(_HOME + "".join(line + _END_OF_LINE for line in screen(view, *_size())) + _REST)


def _show(text: str) -> None:
    """Write what steers the terminal, in characters that it has."""
    out = unguarded(sys.stdout)
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "replace").decode(encoding))
    out.flush()


def _size() -> tuple[int, int]:
    """Columns and lines of the terminal, now, without the line below the screen."""
    out = unguarded(sys.stdout)
    if not out.isatty():
        return max(shutil.get_terminal_size(ONCE).columns, LEAST[0]), ONCE[1]
    size = os.get_terminal_size(out.fileno())
    if not size.columns or not size.lines:  # it does not know
        size = shutil.get_terminal_size()
    return max(size.columns, LEAST[0]), max(size.lines - 1, LEAST[1])
