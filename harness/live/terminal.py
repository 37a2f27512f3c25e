"""A terminal's other screen and its keys. However the program ends, the terminal is as it was before."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, TextIO

from harness.common.printable import unguarded

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[0m\x1b[K", "\x1b[J"
_ENDING = (signal.SIGTERM, signal.SIGHUP)
LEAST = (20, 5)  # columns and lines that are drawn on, however small the terminal is


def has_screen() -> bool:
    """Whether there is a terminal for keys and for a screen."""
    streams = (sys.stdin, unguarded(sys.stdout))
    return (
        all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"
    )


class Terminal:
    """A context manager: inside, the terminal shows what is drawn, and gives each key as it is pressed.

    Raises KeyboardInterrupt at Ctrl-C, and SystemExit at SIGTERM and SIGHUP, which leave it properly.
    """

    def __init__(self) -> None:
        self._out: TextIO = unguarded(sys.stdout)
        self._keys = sys.stdin.fileno()
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._woken, self._wake = -1, -1
        self._wakeup_before = -1

    def __enter__(self) -> Terminal:
        self._before = termios.tcgetattr(self._keys)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
            **dict.fromkeys(_ENDING, _end),
            signal.SIGTSTP: self._stop,
            signal.SIGWINCH: lambda *_: None,
        }
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        for descriptor in (self._woken, self._wake):
            os.close(descriptor)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now."""
        size = os.get_terminal_size(self._out.fileno())
        if not size.columns or not size.lines:  # it does not know
            size = shutil.get_terminal_size()
        return max(size.columns, LEAST[0]), max(size.lines, LEAST[1])

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, in place of what was shown."""
        self._write(_HOME + f"{_END_OF_LINE}\r\n".join(lines) + _END_OF_LINE + _REST)

    def key(self, wait_s: float) -> str:
        """The next key; empty: there was none for so long, or the terminal's size has changed."""
        ready, _, _ = select.select([self._keys, self._woken], [], [], max(0.0, wait_s))
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 64)
        if self._keys not in ready:
            return ""
        pressed = os.read(self._keys, 64)
        if not pressed:  # the terminal is gone
            raise SystemExit(1)
        return "" if pressed.startswith(b"\x1b") else pressed[:1].decode("ascii", "replace")

    def _show(self) -> None:
        tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._write(_ENTER)

    def _restore(self) -> None:
        with suppress(OSError, termios.error):  # of a terminal that is gone
            self._write(_LEAVE)
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _stop(self, *_: object) -> None:
        """Ctrl-Z: the shell's terminal is as it was, until the program goes on."""
        self._restore()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)
        self._show()

    def _write(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
