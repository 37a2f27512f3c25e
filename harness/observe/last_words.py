"""What a rank still writes when it ends: a recording that has begun is kept, and the error is told."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn, TextIO

from harness.common.system.secrets import masked_text
from harness.observe.lines import innermost, is_users

ON_CPU = "can't allocate memory"  # PyTorch says so of its CPU allocator
EXITS = ("sys.exit", "os._exit")  # as the type of an error: the program leaves with a status
LONGEST = 400  # characters of an error's message
LONGEST_OF_MEMORY = 1000  # PyTorch lists what all processes have on a GPU
PATIENCE_S = 10.0  # for a main thread that is inside a call and runs no Python; then the process ends as it would have
_WORKER = re.compile(r"^Caught \w+ in (.+?)\.?$")  # as PyTorch's ExceptionWrapper begins what it raises again
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_TRACEBACK = "Traceback (most recent call last):"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: a GPU's, PyTorch's on a CPU, or Python's own. By name: no torch is needed here."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and ON_CPU in str(error))


def on_termination(write: Callable[[], None]) -> None:
    """Call `write` at SIGTERM, then end as without it. A script that handles SIGTERM itself is left alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before != -1:  # the script's event loop listens there
        signal.set_wakeup_fd(before)
        return
    done = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        try:
            write()
        finally:
            done.set()
            _die()

    def after_a_while() -> None:
        while os.read(reading, 1) != bytes([signal.SIGTERM]):
            pass
        if not done.wait(PATIENCE_S):
            _die()

    os.register_at_fork(after_in_child=_as_before)
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=after_a_while, name="observer end", daemon=True).start()


def on_failure(tell: Callable[[dict[str, Any]], None], crashes: Path) -> None:
    """Call `tell` with what is known of an error that ends the process; then all goes on as without it.

    crashes: a file for the stack of a signal as SEGV, which only C can write, unless the script has that written.
    """
    if not faulthandler.is_enabled():
        _open.append(crashes.open("w", encoding="utf-8"))
        faulthandler.enable(_open[0], all_threads=False)
    _tellers.append(tell)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Exception):
            tell_error(error, trace)
        before(kind, error, trace)

    sys.excepthook = hook
    sys.exit = _telling(EXITS[0], sys.exit, lambda status: status not in (None, 0), tell)
    os._exit = _telling(EXITS[1], os._exit, lambda _: True, tell)


_open: list[TextIO] = []


def _telling(
    name: str, leave: Callable[..., NoReturn], is_failure: Callable[[Any], bool], tell: Callable[[dict[str, Any]], None]
) -> Callable[..., NoReturn]:
    @functools.wraps(leave)
    def leaves(status: Any = None, /) -> NoReturn:
        if is_failure(status) and threading.current_thread() is threading.main_thread():
            with suppress(Exception):
                caller, handled = sys._getframe(1), sys.exc_info()[1]
                if isinstance(handled, Exception) and not is_users(caller.f_code.co_filename):
                    tell(error_of(handled, handled.__traceback__))  # as torch.multiprocessing ends its processes
                else:
                    place = innermost(caller)
                    tell(_described(name, f"{status!r:.200}", list(place) if place else None))
        leave(status)

    return leaves


def tell_error(error: BaseException, trace: TracebackType | None) -> None:
    """Tell of an error that ends the process, as one does that a script turns into a sentence and an exit status."""
    for tell in _tellers:
        with suppress(Exception):
            tell(error_of(error, trace))


_tellers: list[Callable[[dict[str, Any]], None]] = []


def error_of(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """An exception: its type, the first line of its message, and the user's innermost line that it passed. Of one that
    another process raised, such as a DataLoader's worker, all of that is of there."""
    place = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            place = [code.co_filename, trace.tb_lineno, code.co_name]
        trace = trace.tb_next
    lines = str(error).strip().splitlines()
    kind, message = type(error).__name__, lines[0] if lines else ""
    far = _far_error(error)
    if far is not None:
        by = _WORKER.search(message)
        kind, message, place = far.kind, f"{far.message} (in {by[1]})" if by else far.message, far.code_line or place
    most = LONGEST_OF_MEMORY if "out of memory" in message else LONGEST
    return _described(kind, masked_text(message[:most]), place)


class _FarError(NamedTuple):
    kind: str
    message: str
    code_line: list[Any] | None


def _far_error(error: BaseException) -> _FarError | None:
    """The error that another process wrote as a text into this one, with its own place; None: it has no such text.

    PyTorch's workers and torch.multiprocessing write it into the message, multiprocessing and concurrent.futures into
    the cause.
    """
    texts = [str(error), str(error.__cause__) if type(error.__cause__).__name__ == "_RemoteTraceback" else ""]
    text = next((text for text in reversed(texts) if _TRACEBACK in text), None)
    if text is None:
        return None
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    frames = [found for line in lines if (found := _FRAME.match(line))]
    users = [found for found in frames if is_users(found[1])]
    place = [users[-1][1], int(users[-1][2]), users[-1][3]] if users else None
    said = next((found for line in lines if not line.startswith(" ") and (found := _RAISED.match(line.strip()))), None)
    return _FarError(said[1].rpartition(".")[2], said[2] or "", place) if said else None


def _described(kind: str, message: str, place: list[Any] | None) -> dict[str, Any]:
    return {"type": kind, "message": message, "place": place, "unix_ns": time.time_ns()}


def _die() -> None:
    """From any thread: Python's own `signal.signal` is for the main one."""
    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)


def _as_before() -> None:
    """A child has this process's pipe, and must not end it by what it is told itself."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
