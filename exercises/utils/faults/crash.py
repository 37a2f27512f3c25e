"""crash: the process of a rank ends: by an error of Python, a signal, or an exit status. It leaves no core file."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable

from exercises.utils.faults.moments import at_next_call
from exercises.utils.faults.target import Target
from harness.common.faults import Fault

EXIT_STATUS = 3


def inject(fault: Fault, target: Target) -> None:
    """End in forward."""
    end = _KINDS[fault.values["kind"]]
    target.once("forward", fault, lambda: at_next_call(end))


def _exception() -> None:
    raise RuntimeError("this step failed")


def _segv() -> None:
    _no_core_file()
    ctypes.string_at(0)  # reads at the address 0


def _abort() -> None:
    _no_core_file()
    os.abort()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    sys.exit(EXIT_STATUS)


def _gone() -> None:
    os._exit(0)  # without the functions that Python calls at its end


def _no_core_file() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


_KINDS: dict[str, Callable[[], None]] = {
    "exception": _exception,
    "segv": _segv,
    "abort": _abort,
    "kill": _kill,
    "exit": _exit,
    "gone": _gone,
}
