"""One command line run inside of this process, in a sandbox that it cannot leave, and what is wrong with how it ended.

An audit hook is the fence: as for a person without rights, a write outside of the sandbox is refused and no program but
bash's parser is there. A started program, a signal or a run that is handed to a backend is remembered.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NamedTuple, NoReturn
from unittest import mock

from harness.cli.main import main
from harness.common.errors import WorkError
from harness.launch import render
from harness.launch.backends.registry import BACKENDS
from harness.launch.before import check
from tests.fuzz.box import Box
from tests.waiting import limit_s

HANG_S = 20.0  # of the process's own time, on an idle machine
WAIT_S = 6 * HANG_S  # in all: a busy machine is no hang, and who waits for a pipe has no time of its own
MOST_GROWTH_BYTES = 600 << 20  # of this process, by one input of less than a megabyte
CODES = {0: "done", 1: "failed", 2: "refused", 88: "needs training", 128: "git stops"}
REFUSAL = "the fuzzer starts no run"

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
_STARTS = ("os.exec", "os.posix_spawn", "os.system", "os.spawn", "pty.spawn")
_ASKED = ("git", "nsys", "nvidia-smi", "sinfo", "squeue", "sacct", "scontrol")  # questions that a dry run may ask
_SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill")


class Case(NamedTuple):
    """One input. files: beside the sandbox's own, by path in it. lines: the command lines that meet them.

    cut: a file of it ends before its end, so that no answer may be confident.
    """

    lines: list[list[str]]
    files: Mapping[str, bytes] = {}
    cut: bool = False


@dataclass
class Ended:
    """How one command line ended. fault: what is wrong with that; empty when nothing is. where: names the fault."""

    argv: list[str]
    outcome: str
    out: str = ""
    err: str = ""
    seconds: float = 0.0  # of the process's own time
    fault: str = ""
    where: str = ""
    started: list[str] = field(default_factory=list)


class Hung(BaseException):
    """The command line took longer than HANG_S, or waited for longer than WAIT_S."""


class _Fence:
    """What the audit hook knows while a command line runs: one fence per process."""

    box: ClassVar[str | None] = None
    wrote: ClassVar[bool] = False
    parses: ClassVar[bool] = True
    did: ClassVar[list[str]] = []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _Fence.box is None:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITES and not isinstance(path, int):
            _write(path)
    elif event in _CHANGES:
        for path in args[: 2 if event in ("os.rename", "os.link") else 1]:
            _write(path)
    elif event == "subprocess.Popen":
        _start(list(args[1]))
    elif event in _STARTS:
        _start([event, *map(str, args)])
    elif event in _SIGNALS and args[1] != 0:
        _Fence.did.append(f"{event}{args}")
        raise ProcessLookupError(3, "No such process")


def _write(path: str | bytes | os.PathLike[str] | int) -> None:
    """Raises PermissionError: it is outside of the sandbox."""
    if isinstance(path, int):
        return
    place = os.path.realpath(os.fsdecode(path))
    if place in ("/dev/null", "/dev/full"):
        return
    if not place.startswith(f"{_Fence.box}/"):
        raise PermissionError(13, "Permission denied", os.fsdecode(path))
    _Fence.wrote = True


def _start(argv: list[Any]) -> None:
    """Raises FileNotFoundError: no program is there."""
    words = [os.fsdecode(word) for word in argv]
    if words[0] == "bash" and "-n" in words:
        return
    _Fence.did.append(" ".join(words[:3]))
    raise FileNotFoundError(2, "No such file or directory", words[0])


@contextmanager
def fenced(box: Box) -> Iterator[None]:
    """Inside, `ended` runs command lines in this process."""
    _install()
    environ = {
        "PATH": "/usr/bin:/bin", "HOME": str(box.folder / "home"), "TMPDIR": str(box.folder / "tmp"),
        "HARNESS_RUNS": str(box.runs), "HARNESS_SITE": "local", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
        "PYDANTIC_DISABLE_PLUGINS": "__all__", "MPLBACKEND": "agg", "USER": "someone",
    }  # fmt: skip
    cwd, parsed = Path.cwd(), check._bash_says
    says = mock.patch.object(check, "_bash_says", lambda text: parsed(text) if _Fence.parses else "")
    # Compiled templates lie beside the interpreter's packages, outside of the sandbox.
    templates = mock.patch.object(render, "_bytecode_cache", lambda: None)
    with mock.patch.dict(os.environ, environ, clear=True), _without_launches(), says, templates:
        os.chdir(box.work)
        render._environment.cache_clear()
        try:
            yield
        finally:
            render._environment.cache_clear()
            os.chdir(cwd)


_installed: list[bool] = []


def _install() -> None:
    """An audit hook cannot be removed, so there is one, which does nothing outside of `ended`."""
    if not _installed:
        sys.addaudithook(_watch)
        _installed.append(True)


@contextmanager
def _without_launches() -> Iterator[None]:
    """No backend starts anything: it refuses, as a scheduler may, and that is remembered."""

    def refuse(*_: object, **__: object) -> NoReturn:
        _Fence.did.append("submit")
        raise WorkError(REFUSAL)

    ways = [("local", "start_controller"), *(("slurm", f"submit{how}") for how in ("", "_together", "_after"))]
    with ExitStack() as patches:
        for name, way in ways:
            patches.enter_context(mock.patch.object(BACKENDS[name], way, refuse))
        yield


def _hung(_number: int, _frame: FrameType | None) -> None:
    raise Hung


def run_case(box: Box, case: Case, wait_s: float = WAIT_S, *, parses: bool = True, keeps: bool = False) -> list[Ended]:
    """How each command line of a case ended. `fenced` is around it. parses: bash really parses each script. keeps: what
    they write stays until the box is restored."""
    _Fence.parses = parses
    with box.holding(case.files):
        return [ended(box, argv, case.cut, wait_s, keeps=keeps) for argv in case.lines]


def ended(box: Box, argv: list[str], cut: bool = False, wait_s: float = WAIT_S, *, keeps: bool = False) -> Ended:
    """Run one command line. `fenced` is around it. keeps: what it writes stays."""
    out, err = _Stream("strict"), _Stream("backslashreplace")  # as Python's own
    found = Ended(argv, "traceback")
    _Fence.did, _Fence.wrote = [], False
    began, memory = time.process_time(), _resident_bytes()
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "stdin", io.StringIO()):
        of_test = {number: signal.signal(number, _hung) for number in (signal.SIGALRM, signal.SIGPROF)}
        signal.setitimer(signal.ITIMER_PROF, limit_s(HANG_S))
        left_to_test_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s(wait_s))
        _Fence.box = str(box.folder)
        try:
            code: object = main(argv)
        except SystemExit as leaving:
            code = leaving.code or 0
        except Hung as error:
            code, found.outcome = None, "hang"
            found.fault, found.where = f"no end within {HANG_S:g} s\n{_trace(error)}", _place(error)
        except Exception as error:  # noqa: BLE001 - any of them is what is looked for
            code = None
            found.fault, found.where = _trace(error), _place(error)
        finally:
            _Fence.box = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            for number, handler in of_test.items():
                signal.signal(number, handler)
            signal.setitimer(signal.ITIMER_REAL, left_to_test_s)
    found.seconds = time.process_time() - began
    found.out, found.err, found.started = out.text(), err.text(), list(_Fence.did)
    if code is not None:
        found.outcome = CODES.get(code, "code") if isinstance(code, int) else "code"
        found.fault = found.where = _wrong(code, found, cut)
    grown = _resident_bytes() - memory
    if not found.fault and grown > MOST_GROWTH_BYTES:
        found.fault = found.where = f"memory: {grown >> 20} MiB"
    if not keeps and _Fence.wrote:
        # A run's summary is kept whenever it was measured, also where the request then turns out wrong.
        changed = [path for path in box.changed() if not path.endswith("/summary.json")]
        if changed and code == 2 and not found.fault:
            found.fault, found.where = f"refused, and written: {', '.join(changed)}", "written"
        box.restore()
    return found


class _Bytes(io.BytesIO):
    """What a command line prints. A number as of a file, whose place another file may take."""

    def fileno(self) -> int:
        return _nowhere()


@cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


class _Stream(io.TextIOWrapper):
    """As Python's own standard output."""

    def __init__(self, errors: str) -> None:
        self._kept = _Bytes()
        super().__init__(self._kept, encoding="utf-8", errors=errors, newline="\n")

    def text(self) -> str:
        """All that was printed."""
        self.flush()
        return self._kept.getvalue().decode()


def _wrong(code: object, found: Ended, cut: bool) -> str:
    """What is wrong with a command line that ended with this code; empty when nothing is."""
    said = found.err + found.out
    empty = any(line.rstrip() in ("slurm.sh:", "warning:") for line in found.err.splitlines())
    launched = [each for each in found.started if not each.startswith((*_ASKED, *_SIGNALS))]
    wrong = {
        f"exit code {code!r}": code not in CODES,
        "a traceback was printed": "Traceback (most recent call last)" in said,
        "no sentence": code in (1, 2, 128) and not said.strip(),
        "an empty sentence": empty,
        f"a dry run started {launched}": "--dry-run" in found.argv and bool(launched),
        f"a signal was sent: {found.started}": any("kill" in each for each in found.started),
        "good, from a file that lacks its end": cut and '"verdict": "good"' in found.out.partition('"withheld"')[0],
    }
    return next((what for what, holds in wrong.items() if holds), "")


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))[-6000:]


def _place(error: BaseException) -> str:
    """The error's name and the last line of ours that it passed: the same for the same defect."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/harness/" in f.filename]
    if not ours:
        return type(error).__name__
    path = ours[-1].filename.rpartition("/harness/")[2]
    return f"{type(error).__name__} in harness/{path} {ours[-1].name}"


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - for each of millions
        return int(file.read().split()[1]) * _PAGE
