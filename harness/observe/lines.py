"""Which line of the user's code the main thread is in, sampled by a thread of its own: `lines/rank<R>.jsonl`. Each look
is also told to the record of the job's time (job_time.py), which begins before the process shows to be a rank.

One JSON object per line: `start`; `place`, once for each place before its first use, with the source around it and
with the user's lines that called it; `at`, whenever the main thread is seen at another place than before, and at each
look in the profiled steps, with the time of the look before; `end`. Frames of the standard library, of installed
packages and of the observer are skipped: the place is the innermost frame that is the user's own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import linecache
import os
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from harness.common.paths import INSTALLED_EXERCISES
from harness.common.run_folder.job_parts import IMPORTS
from harness.common.run_folder.run_files import LINES
from harness.observe.marks import FunctionMark, kind_of, subject_of

HZ, STEP_HZ, WINDOW_HZ = 50, 25, 200  # samples per second: beside the steps, in steps, and in those that are recorded
FLUSH_S = 0.1  # between two writes
AROUND = 1  # lines of source before and after
LONGEST = 400  # characters of a line of source
# While a look waits for the interpreter's lock, in the profiled steps. With Python's own 5 ms a look at code that often
# gives the lock away, as at calls into PyTorch, would find only these calls, and not the Python between them. Two
# threads that both run Python took as long with it as with 5 ms, within the noise of 10 %.
PATIENCE_S = 0.00005
_PR_SET_TIMERSLACK = 29  # prctl(2)
CALLERS = 8  # of a place that are written, the nearest
MOST_WITH_CALLERS = 4096  # places; a program with more of them calls itself in ever new ways
MOST_PACKAGES = 8  # that import each other, the innermost
PART_OF_RISE = 0.2
PEAK_STEP = 1.02  # times the peak so far, from which there is a new one
LATE = 3  # periods between two looks, from which the sampler was kept from looking by what it then sees
UNKNOWN = FunctionMark(False)
_OTHERS = ("site-packages", "dist-packages", "torchinductor_")  # the last: code that torch.compile writes
# Python 3.11 may make a frame object while another thread runs and leaves that frame, if its making starts a garbage
# collection: the object then points into memory that is used for something else. So no garbage is collected during a
# look, as in Python's own `sys._current_frames`.
_COLLECTS = sys.version_info[:2] == (3, 11)
HARNESS = str(Path(__file__).resolve().parents[1])
# Code that injects a fault or marks a function is passed over: the line is the one that it disturbs, or that calls.
_AROUND_CALLS = tuple(
    f"{Path(__file__).resolve().parents[2]}/exercises/{name}"
    for name in ("utils/faults/", "exercise_3_MegatronLM/hooks.py")
)


class SourceLine(NamedTuple):
    """Where the main thread is in the user's code."""

    file: str
    line: int
    function: str


class Look(NamedTuple):
    """What the main thread was seen in: the part of the job's time (empty: none is known), and of an import the
    packages, the outermost first. places: the user's, the innermost first. middle_ns: between this look and the one
    before; where the sampler was kept from looking, that one."""

    part: str
    what: tuple[str, ...]
    places: tuple[SourceLine, ...]
    middle_ns: int
    unix_ns: int


class MemoryPeak(NamedTuple):
    """The most memory at a look, and the user's line; None: it was in none."""

    size: int
    line: SourceLine | None


class PeakMemory:
    """The highest peak of all looks so far."""

    def __init__(self) -> None:
        self.highest = MemoryPeak(0, None)
        self._rise: list[tuple[int, SourceLine | None]] = []  # by how much it rose at each look of this rise, and where
        self._before = 0

    def sees(self, size: int, line: SourceLine | None) -> None:
        """A peak belongs to the first line of those in which it rose, one look after the other, that had a good part
        of it, or the largest: the lines after it hold the same."""
        if size > PEAK_STEP * self.highest.size:
            self._rise.append((size - (self._before or size), line))
            rises = [more for more, _ in self._rise]
            least = min(PART_OF_RISE * sum(rises), max(rises))
            self.highest = MemoryPeak(size, next(at for more, at in self._rise if more >= least))
        else:
            self._rise = []
        self._before = size


class LookRecord(Protocol):
    """What is told each look."""

    def saw(self, look: Look) -> None:
        """The main thread was looked at."""

    @property
    def is_over(self) -> bool:
        """Whether nobody needs to look any more."""

    def flush(self) -> None:
        """A tenth of a second has passed."""

    def close(self) -> None:
        """The process ends."""


if TYPE_CHECKING:  # Python 3.8 cannot evaluate it
    Seen = tuple[CodeType, int, Any]  # of a frame: its code, its line, and what it is about


class LineSampler:
    """Samples the main thread until `close`, at its own rate in steps. record: is told each look."""

    def __init__(self, record: LookRecord | None = None) -> None:
        self.pid = os.getpid()
        self._record = record
        self._file: TextIO | None = None
        self._main = threading.main_thread().ident
        self._kinds: dict[CodeType, FunctionMark | None] = {}
        self._ids: dict[tuple[SourceLine, ...], int] = {}
        self._last: int | None = -1
        self._looked_ns = 0
        self._pending: list[tuple[int, int, int | None]] = []  # times of two looks, and the place
        self._on_flush: Callable[[], object] = lambda: None
        self._memory: Callable[[], int | None] = lambda: None
        self.peak = PeakMemory()
        self._flush_at_s = 0.0
        self._is_fast, self._period_s = False, 1 / HZ
        self._interval_s: float | None = None  # Python's own, while it is ours
        self._writes = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer lines", daemon=True)
        self._thread.start()

    def write_to(
        self,
        run_dir: Path,
        rank: int,
        on_flush: Callable[[], object] = lambda: None,
        memory: Callable[[], int | None] = lambda: None,
    ) -> None:
        """From now on write the lines of this rank. on_flush: called whenever samples are written, ten times a second,
        by the sampler's thread. memory: how much the process uses now."""
        path = LINES.path(run_dir, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", buffering=1, encoding="utf-8")  # a child of fork has nothing to write again
        self._on_flush, self._memory = on_flush, memory
        started = {"event": "start", "rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "hz": HZ}
        file.write(json.dumps({**started, "unix_ns": time.time_ns()}) + "\n")
        self._file = file

    def in_step(self, fast: bool) -> None:
        """A step begins. fast: a profiler records it."""
        self._sample_at(WINDOW_HZ if fast else STEP_HZ, fast)

    def _sample_at(self, hz: float, fast: bool) -> None:
        self._is_fast, self._period_s = fast, 1 / hz
        if fast and self._interval_s is None and sys.getswitchinterval() > PATIENCE_S:
            self._interval_s = sys.getswitchinterval()
            sys.setswitchinterval(PATIENCE_S)
        elif not fast and self._interval_s is not None:
            sys.setswitchinterval(self._interval_s)
            self._interval_s = None

    def close(self) -> None:
        """Write what is left."""
        if self._stop.is_set() or self.pid != os.getpid():
            return
        self._stop.set()
        self._thread.join(1.0)
        self.end_lines()
        if self._record is not None:
            self._record.close()

    def end_lines(self) -> None:
        """The training is over: write what is left of its lines. The record is told looks until `close`."""
        self._sample_at(HZ, False)
        with self._writes:
            self._write_pending()
            self._write(event="end", unix_ns=time.time_ns())
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _run(self) -> None:
        try:
            with suppress(AttributeError, OSError):  # else this thread's waits end 50 µs late; another system has none
                ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
            while not self._stop.wait(self._period_s):
                self._sample()
                if time.monotonic() >= self._flush_at_s:
                    self._flush_at_s = time.monotonic() + FLUSH_S
                    with self._writes:
                        self._write_pending()
                    self._on_flush()
                    if self._record is not None:
                        self._record.flush()
                        if self._record.is_over:
                            return
        except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
            print(f"observer: no more lines, because {error!r}", file=sys.stderr)

    def _sample(self) -> None:
        # The main thread may wait for this one, with cold caches: as little as possible is called.
        switches = _COLLECTS and gc.isenabled()
        if switches:
            gc.disable()
        try:
            found = self._frames(sys._current_frames().get(self._main or 0))
        finally:
            if switches:
                gc.enable()
        unix_ns = time.time_ns()
        before_ns, self._looked_ns = self._looked_ns, unix_ns
        part, what, places = self._told(found)
        if self._record is not None:
            period_ns = int(self._period_s * 1e9)
            middle_ns = before_ns if 0 < before_ns < unix_ns - LATE * period_ns else unix_ns - period_ns // 2
            self._record.saw(Look(part, what, places, middle_ns, unix_ns))
        if self._file is not None:
            self.peak.sees(self._memory() or 0, places[0] if places else None)
            with self._writes:
                self._note(unix_ns, before_ns, places)

    def _note(self, unix_ns: int, before_ns: int, source_lines: tuple[SourceLine, ...]) -> None:
        number = None if not source_lines else self._number(source_lines)
        if number != self._last or self._is_fast:
            self._last = number
            self._pending.append((unix_ns, before_ns, number))

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        at = ({"event": "at", "unix_ns": now, "since_ns": before, "id": number} for now, before, number in pending)
        if self._file is not None:
            self._file.write("".join(json.dumps(line) + "\n" for line in at))

    def _frames(self, frame: FrameType | None) -> list[Seen]:
        """The frames that are the user's, of a part of the job's time, or not yet known; the innermost first."""
        found: list[Seen] = []
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code, UNKNOWN)
            if kind is not None:
                about = subject_of(frame) if kind is UNKNOWN or kind.imports else None
                found.append((code, frame.f_lineno or code.co_firstlineno, about))
            frame = frame.f_back
        return found

    def _told(self, looks: list[Seen]) -> tuple[str, tuple[str, ...], tuple[SourceLine, ...]]:
        """The part of the job's time, what is imported, and the user's place with the places that called it; of a
        function that calls itself the innermost call."""
        places: list[SourceLine] = []
        last: CodeType | None = None
        part = weak = ""
        packages: list[str] = []
        for code, line, about in looks:
            kind = self._kinds.get(code, UNKNOWN)
            if kind is UNKNOWN:
                kind = self._kinds[code] = kind_of(code, is_users(code.co_filename), about)
            if kind is None:
                continue
            if kind.users and code is not last:
                places.append(SourceLine(code.co_filename, line, code.co_name))
                last = code
            if kind.strong:
                part = part or kind.part
            weak = weak or kind.part
            if kind.imports and part == IMPORTS and isinstance(about, str):
                package = about.partition(".")[0]
                if not packages or packages[0] != package:
                    packages.insert(0, package)
        shown = tuple(places[: 1 + (CALLERS if len(self._ids) < MOST_WITH_CALLERS else 0)])
        return part or weak, tuple(packages[-MOST_PACKAGES:]), shown

    def _number(self, source_lines: tuple[SourceLine, ...]) -> int:
        number = self._ids.get(source_lines)
        if number is None:
            number = self._ids[source_lines] = len(self._ids)
            place, *callers = source_lines
            first, source = source_around(place.file, place.line)
            self._write(
                event="place",
                id=number,
                file=str(Path(place.file).absolute()),
                line=place.line,
                function=place.function,
                source=source,
                first_line=first,
                callers=[[str(Path(own.file).absolute()), own.line, own.function] for own in callers],
            )
        return number

    def _write(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")


def innermost(frame: FrameType | None) -> SourceLine | None:
    """The user's place in a frame or in what called it; None: no code of the user's runs."""
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            return SourceLine(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)
        frame = frame.f_back
    return None


@contextmanager
def looking_at_frames() -> Iterator[dict[int, FrameType]]:
    """The frames of all threads, by the thread's number; see `_COLLECTS`."""
    switches = _COLLECTS and gc.isenabled()
    if switches:
        gc.disable()
    try:
        yield sys._current_frames()
    finally:
        if switches:
            gc.enable()


def source_around(file: str, line_number: int) -> tuple[int, list[str]]:
    """The number of the first line and the lines around `line_number`; none where the file cannot be read."""
    lines = linecache.getlines(file)
    first = max(1, line_number - AROUND)
    return first, [text.rstrip("\n")[:LONGEST] for text in lines[first - 1 : line_number + AROUND]]


def is_users(file: str) -> bool:
    """Whether a file is of none of these: standard library, installed packages and their scripts, as torchrun's, the
    harness, the injectors, the marks of Megatron's functions."""
    if file.startswith("<") or (any(part in file for part in _OTHERS) and INSTALLED_EXERCISES not in file):
        return False
    path = str(Path(file).absolute())
    others = (HARNESS, *_AROUND_CALLS) if INSTALLED_EXERCISES in path else (*_STANDARD, HARNESS, *_AROUND_CALLS)
    return not path.startswith(others)


_STANDARD = tuple(
    f"{path}{os.sep}"
    for name in ("stdlib", "platstdlib", "scripts")
    for found in [Path(sysconfig.get_path(name))]
    for path in (found, found.resolve())
)
