"""Watches runs until they end or the user quits: on a screen with keys, as lines, or as JSON. Knows no scheduler.

Whoever calls it says how a run's state is asked, and which commands record and cancel a run.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, TextIO

from harness.common.printable import printable, unguarded
from harness.common.run_files import ERR, OUT
from harness.heartbeats.silent_nodes import SILENT_S
from harness.live.screen import ScreenOptions, as_json, as_line, screen
from harness.live.several import several
from harness.live.view import RunView, WatchedRun
from harness.run import Run
from harness.run.state import RunState

Look = Callable[[Sequence[Run]], list[RunState]]
GRACE_S = 60.0  # so long, a run of which nobody knows the state may still go on
FIRST_ANSWER_S = 2.0  # the screen waits so long for the first answer about the states
_LOG_BYTES = 32 << 10  # of a log's end
_SAID_BYTES = 4 << 10
_ENDING = (signal.SIGTERM, signal.SIGHUP)
LEAST = (20, 5)  # columns and lines that are drawn on, however small the terminal is


class WatchedRuns:
    """Some runs, and how their states are asked."""

    def __init__(self, runs: Sequence[Run], look: Look) -> None:
        self.runs = list(runs)
        self._look = look
        self._watched = [WatchedRun(run) for run in runs]

    def states(self) -> list[RunState]:
        return self._look(self.runs)

    def refresh(self, run_states: Sequence[RunState] | None = None) -> list[RunView]:
        """All runs now. told: their states; None: they are asked."""
        known = self.states() if run_states is None else run_states
        return [run.look(state) for run, state in zip(self._watched, known, strict=True)]


def exit_code(views: Sequence[RunView]) -> int:
    """1 if a run has ended otherwise than completed."""
    return int(any(view.state.final and view.state.state != "completed" for view in views))


def watch_lines(watching: WatchedRuns, interval_s: float, json: bool, once: bool) -> int:
    """Print a line for each run, or one JSON object, again and again until all have ended; returns the exit code.

    A run whose state is unknown for GRACE_S has ended too, unless it has heartbeats.
    """
    next_s = known_s = time.monotonic()
    while True:
        views = watching.refresh()
        print(as_json(views) if json else "\n".join(map(as_line, views)), flush=True)
        if once or all(view.state.final for view in views):
            return exit_code(views)
        if not all(view.state.final or _is_lost(view) for view in views):
            known_s = time.monotonic()
        elif time.monotonic() - known_s > GRACE_S:
            return 1
        next_s = max(next_s + interval_s, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))


def _is_lost(view: RunView) -> bool:
    """Whether nobody knows what it does."""
    nodes = view.live.nodes.values()
    return view.state.state == "unknown" and all(node.age_s(view.now_ns) > SILENT_S for node in nodes)


class Background:
    """Asks for the states beside the screen, as a scheduler may take seconds to answer. One question at a time."""

    def __init__(self, look: Callable[[], list[RunState]], count: int) -> None:
        self._look = look
        self._last_states = [RunState()] * count
        self._thread: threading.Thread | None = None

    def told(self) -> list[RunState]:
        """What was last said; begins the next question."""
        if self._thread is None or not self._thread.is_alive():
            first = self._thread is None
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()
            self._thread.join(FIRST_ANSWER_S if first else 0.05)
        return self._last_states

    def _ask(self) -> None:
        self._last_states = self._look()


class BackgroundCommand:
    """A command that runs in the background. what: what it does, for people."""

    def __init__(self, what: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._what = what
        with tempfile.TemporaryFile() as said:
            self._said = os.dup(said.fileno())
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,  # it goes on when the screen is left
            )  # fmt: skip

    @property
    def message(self) -> str:
        """What it does, and the last line that it printed."""
        code = self._process.poll()
        begins = max(0, os.fstat(self._said).st_size - _SAID_BYTES)
        said = os.pread(self._said, _SAID_BYTES, begins).decode("utf-8", "replace")
        lines = [printable(line) for line in said.splitlines() if line.strip()]
        how = "…" if code is None else ": done" if code == 0 else ": failed"
        return f"{self._what}{how}" + (f" · {lines[-1]}" if lines else "")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


def last_lines(run: Run) -> list[str]:
    """The end of the run's output, of both streams."""
    found = []
    for file in (OUT, ERR):
        if run.where(file).is_file():
            text = file.end_text(run.where(file), _LOG_BYTES)
            # A bar of progress begins its line anew: its last state is shown.
            lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
            found += [f"{file.name}:", *(line for line in lines[1:] or lines if line.strip())]
    return [printable(line) for line in found] or ["It has printed nothing yet."]


class Actions(NamedTuple):
    """The commands that keys start. Each is an argv for a run's path; environment: that they run in."""

    capture: Callable[[Run], list[str]]
    cancel: Callable[[Run], list[str]]
    environment: Mapping[str, str]


class WatchScreen:
    """The screen, what is on it, and what its keys do."""

    def __init__(self, watching: WatchedRuns, terminal: Terminal, interval_s: float, actions: Actions) -> None:
        self._watching, self._terminal, self._interval_s, self._actions = watching, terminal, interval_s, actions
        self._states = Background(watching.states, len(watching.runs))
        self._logs = self._asks = False
        self._command: BackgroundCommand | None = None
        self.views: list[RunView] = []

    def run(self) -> None:
        """Draw and read keys until the user quits."""
        next_s = 0.0
        while True:
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + self._interval_s
                self.views = self._watching.refresh(self._states.told())
            self._draw()
            if self._press(self._terminal.key(next_s - time.monotonic())):
                return

    def _draw(self) -> None:
        shown = ScreenOptions()
        if len(self.views) == 1:
            view = self.views[0]
            question = f"Cancel {view.job_id} (y/n)?" if self._asks else ""
            message = question or (self._command.message if self._command else "")
            shown = ScreenOptions(last_lines(view.run) if self._logs else None, message)
        self._terminal.draw(_drawn(self.views, self._terminal.size, shown))

    def _press(self, key: str) -> bool:
        """Do what the key says; returns whether it ends the screen."""
        if self._asks:
            self._asks = key == ""
            if key in ("y", "Y"):
                self._start("cancel", self._actions.cancel)
            return False
        if key in ("q", "Q"):
            return True
        if len(self.views) == 1:
            view = self.views[0]
            if key == "l":
                self._logs = not self._logs
            elif key == "c" and not view.state.final:
                self._start("capture of 5 steps", self._actions.capture)
            elif key == "x" and not view.state.final:
                self._asks = True
        return False

    def _start(self, what: str, argv: Callable[[Run], list[str]]) -> None:
        if self._command is None or self._command.ended:
            self._command = BackgroundCommand(what, argv(self._watching.runs[0]), self._actions.environment)


def watch_screen(watching: WatchedRuns, interval_s: float, actions: Actions) -> int:
    """Show a screen until the user quits, by q or Ctrl-C; returns the exit code."""
    with Terminal() as terminal:
        shown = WatchScreen(watching, terminal, interval_s, actions)
        with suppress(KeyboardInterrupt):
            shown.run()
    return exit_code(shown.views)


def print_screen(watching: WatchedRuns, width: int, height: int, colour: bool) -> int:
    """Print the screen once, without keys; returns the exit code."""
    views = watching.refresh()
    print("\n".join(_drawn(views, (width, height), ScreenOptions(keys=False), colour)))
    return exit_code(views)


def _drawn(views: Sequence[RunView], size: tuple[int, int], shown: ScreenOptions, colour: bool = True) -> list[str]:
    return screen(views[0], *size, shown, colour) if len(views) == 1 else several(views, *size, shown, colour)


_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[0m\x1b[K", "\x1b[J"


def has_screen() -> bool:
    """Whether there is a terminal for keys and for a screen."""
    streams = (sys.stdin, unguarded(sys.stdout))
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"


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
