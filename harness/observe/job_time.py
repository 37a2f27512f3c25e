"""Records which part of the job's time a rank is in, from its process's start to its end: `job-time/rank<R>.jsonl`.

The sampler of the main thread tells each look. Before the training each change is kept; in it, what lies outside of
batches, forward and backward passes and optimizer steps for SHORT_NS or longer. What is shorter has one sum per place.
A process that does not yet show to be a rank keeps its lines in memory; if it never trains, nothing is written.

One JSON object per line:

- `process`: rank, host, node (its number), pid, `began_ns` (unix time at which the process was started), unix_ns (the
  observer's begin).
- `place`: id, file, line, function, callers (the user's lines above it, each as file, line, function); before its
  first use.
- `at`: from unix_ns on the main thread is in `part` (one of job_parts.py; "": none is known) at the place `id` (-1: in
  none of the user's code), doing `what` (of an import the packages, the outermost first). A part ends where the next
  begins.
  In the first step each change is told, later only what lies outside of steps for long.
- `belongs`: a function (file, function) of the user's makes modules, calls the model to evaluate it, or (part `steps`)
  is of the loop of steps. What it does otherwise belongs to the part too, unless it is of several.
- `between`: ns outside of all phases in all steps so far, and of its largest places the id and the ns.
- `end`: the observer has ended, with the script.

Standard library only: it begins before PyTorch is imported.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

from harness.common.run_folder.job_parts import COMPILATION, DATA, EVALUATION, FIRST_STEP, STEPS
from harness.common.run_folder.run_files import JOB_TIME
from harness.observe.lines import LineSampler, Look, SourceLine, is_users

SHORT_NS = 200_000_000  # outside of steps, in the training: what is shorter belongs to the steps
ALIVE_NS = 500_000_000  # a process that has become another program until then is no rank
SUMS_NS = 5_000_000_000  # between two times that the sums of the places are written
MOST_SUMS = 8  # places that are written
STEPS_KEPT, RARE = 101, 3  # steps that say what is usual, and times that from which a step is left out
MOST_KEPT = 20_000  # lines of a process that does not show to be a rank
NO_RANK_NS = 60_000_000_000  # without any line of the user's: then it is a launcher


class JobTimeRecorder:
    """The record of one process. now: the training's step and phase, as heartbeat.py has them."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.pid = os.getpid()
        self._begun_ns = time.time_ns()
        self._began_ns = process_began_ns()
        self.now: Callable[[], tuple[int, str | None]] = lambda: (0, None)
        self._kept: list[str] = []
        self._unwritten: list[str] = []
        self._file: TextIO | None = None
        self._rank: int | None = None
        self._tried = False
        self._has_users = False
        self._outside: dict[tuple[Any, ...], int] = {}  # ns of what is seen outside of steps, in this stretch
        self._since_ns = 0  # when that began
        self._seen_ns = 0  # the look before
        self._is_long = False  # it was long enough to be told
        self._state: tuple[Any, ...] = ()
        self._sums: dict[tuple[SourceLine, ...], int] = {}  # ns outside of all phases, in steps that have ended
        self._of_step: dict[tuple[SourceLine, ...], int] = {}  # the same of the step that runs
        self._totals: deque[int] = deque(maxlen=STEPS_KEPT)  # ns, of each of the last steps
        self._summed_step = 0
        self._looked_ns = 0
        self._summed_ns = 0  # when the sums were written
        self._ids: dict[tuple[SourceLine, ...], int] = {}
        self._told_of: set[CodeType] = set()
        self._loop: set[tuple[str, str]] = set()

    # -- looks ---------------------------------------------------------------------------------------------------------

    def saw(self, look: Look) -> None:
        """The main thread was looked at."""
        self._has_users |= bool(look.places)
        step, phase = self.now()
        moment_ns = look.middle_ns
        if step != self._summed_step:
            self._add_step(is_over=step > self._summed_step)
            self._summed_step = step
        if step and phase in (None, EVALUATION) and self._looked_ns:
            self._of_step[look.places] = self._of_step.get(look.places, 0) + look.unix_ns - self._looked_ns
        self._looked_ns = look.unix_ns
        if look.unix_ns - self._summed_ns >= SUMS_NS:
            self._summed_ns = look.unix_ns
            self._tell_sums()
        if COMPILATION in (phase, look.part):
            state: tuple[Any, ...] = (COMPILATION, (), look.places)
        elif phase is None or phase == EVALUATION:
            state = (EVALUATION if phase else look.part, look.what if not phase else (), look.places)
        elif step:
            self._is_in_loop(look.places)
            state = (STEPS, (), ())
        else:  # what makes the first step long has its line
            self._is_in_loop(look.places)
            part = FIRST_STEP if look.part == FIRST_STEP else DATA if phase == "data" else STEPS
            state = (part, (), look.places)
        if step:
            self._in_training(state, moment_ns, look.unix_ns)
        elif state != self._state:
            self._state = state
            self._at(state, moment_ns)

    def _is_in_loop(self, source_lines: tuple[SourceLine, ...]) -> None:
        """The functions of the loop of steps are of no other part."""
        for place in source_lines:
            if (place.file, place.function) not in self._loop:
                self._loop.add((place.file, place.function))
                file = str(Path(place.file).absolute())
                self._line(event="belongs", part=STEPS, file=file, function=place.function)

    def _in_training(self, state: tuple[Any, ...], moment_ns: int, now_ns: int) -> None:
        """A stretch outside of steps is told in pieces of SHORT_NS, each with what is seen most in it."""
        if state[0] == STEPS:
            if self._is_long:
                self._tell_most()
                self._at(state, moment_ns)
            elif not self._state or self._state[0] != STEPS:
                self._at(state, moment_ns)
            self._state, self._since_ns, self._is_long = state, 0, False
            self._outside.clear()
            return
        if not self._since_ns:
            self._since_ns = self._seen_ns = moment_ns
        self._outside[state] = self._outside.get(state, 0) + max(now_ns - self._seen_ns, 1)
        self._seen_ns = now_ns
        if now_ns - self._since_ns >= SHORT_NS:
            self._is_long = True
            self._tell_most()
            self._since_ns = now_ns

    def _tell_most(self) -> None:
        """Of what a part of the time is known before what none is known of."""
        if not self._outside:
            return
        known = {state: ns for state, ns in self._outside.items() if state[0]}
        enough = 4 * sum(known.values()) >= sum(self._outside.values())
        seen = known if known and enough else self._outside
        most = max(seen, key=lambda state: seen[state])
        if most != self._state:
            self._at(most, self._since_ns)
        self._state = most
        self._outside.clear()

    def _add_step(self, *, is_over: bool) -> None:
        """Not of a step that did not end, as after the training, nor of one with far more time outside of its phases
        than the others have, as one with a checkpoint."""
        of_step, self._of_step = self._of_step, {}
        if not is_over:
            return
        total_ns = sum(of_step.values())
        self._totals.append(total_ns)
        usual_ns = sorted(self._totals)[len(self._totals) // 2]
        if total_ns <= RARE * usual_ns + SHORT_NS // 4:
            for places, ns in of_step.items():
                self._sums[places] = self._sums.get(places, 0) + ns

    def _tell_sums(self) -> None:
        largest = sorted(self._sums, key=lambda places: -self._sums[places])[:MOST_SUMS]
        sums = [[self._number(places), self._sums[places]] for places in largest]
        if sums:
            self._line(event="between", ns=sum(self._sums.values()), places=sums)

    def _at(self, state: tuple[Any, ...], since_ns: int) -> None:
        part, what, places = state
        number = self._number(places)
        self._line(event="at", unix_ns=since_ns, part=part, what=list(what), id=number)

    def _number(self, source_lines: tuple[SourceLine, ...]) -> int:
        if not source_lines:
            return -1
        number = self._ids.get(source_lines)
        if number is None:
            number = self._ids[source_lines] = len(self._ids)
            place, *callers = [(str(Path(each.file).absolute()), each.line, each.function) for each in source_lines]
            self._line(event="place", id=number, file=place[0], line=place[1], function=place[2], callers=callers)
        return number

    def belongs(self, frame: FrameType | None, part: str) -> None:
        """The user's function that this frame is in, or was called by, does what belongs to a part."""
        while frame is not None:
            code = frame.f_code
            if code in self._told_of or code.co_name == "<module>":
                return
            if is_users(code.co_filename):
                self._told_of.add(code)
                file = str(Path(code.co_filename).absolute())
                self._line(event="belongs", part=part, file=file, function=code.co_name)
                return
            frame = frame.f_back

    @property
    def is_over(self) -> bool:
        """Whether this process is no rank, as a launcher that imports PyTorch."""
        return self._rank is None and not self._has_users and time.time_ns() - self._begun_ns > NO_RANK_NS

    # -- the file ------------------------------------------------------------------------------------------------------

    def _line(self, **line: Any) -> None:
        self._unwritten.append(json.dumps(line) + "\n")

    def is_rank(self, run_dir: Path, rank: int) -> None:
        """This process trains as this rank."""
        self._run_dir = run_dir
        if self._file is None or rank != self._rank:
            if self._file is not None:
                self._file.close()
            self._open(rank, "w")
        self._kept = []

    def flush(self) -> None:
        """Write what is new; the sampler's thread does so ten times a second."""
        rank = os.environ.get("RANK", "")
        if self._file is None and not self._tried and rank.isdecimal():
            if time.time_ns() - self._begun_ns < ALIVE_NS:
                return
            self._tried = True
            with suppress(OSError):  # another process is this rank: the one that trains will say so
                self._open(int(rank), "x")
        lines, self._unwritten = self._unwritten, []
        if self._file is not None:
            self._file.write("".join(lines))
        else:
            self._kept = (self._kept + lines)[:MOST_KEPT]

    def _open(self, rank: int, mode: str) -> None:
        path = JOB_TIME.path(self._run_dir, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _opened(path, mode)
        about = {"rank": rank, "host": socket.gethostname(), "pid": self.pid, "node": _node()}
        times = {"began_ns": self._began_ns, "unix_ns": self._begun_ns}
        file.write("".join([json.dumps({"event": "process", **about, **times}) + "\n", *self._kept]))
        self._file, self._rank = file, rank

    def close(self) -> None:
        """The process ends."""
        if self.pid != os.getpid():
            return
        if self._since_ns:
            self._tell_most()
        self._tell_sums()
        self._line(event="end", unix_ns=time.time_ns())
        with suppress(OSError, ValueError):
            self.flush()
        if self._file is not None:
            self._file.close()


def _opened(path: Path, mode: str) -> TextIO:
    return path.open("x" if mode == "x" else "w", buffering=1, encoding="utf-8")


def _node() -> int:
    number = os.environ.get("GROUP_RANK") or os.environ.get("NODE_RANK") or os.environ.get("SLURM_NODEID") or "0"
    return int(number) if number.isdecimal() else 0


def process_began_ns() -> int:
    """The unix time at which this process was started, to 10 ms, as Linux has it; elsewhere now."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        since_boot_s = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time_ns() - int((time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s) * 1e9)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time_ns()


_begun: list[LineSampler] = []
_records: list[JobTimeRecorder] = []


def begin(run_dir: Path) -> LineSampler:
    """Begin to sample this process's main thread, once; a fork that turns out to train begins anew."""
    if _begun and _begun[0].pid == os.getpid() and not _records[0].is_over:
        return _begun[0]
    record = JobTimeRecorder(run_dir)
    sampler = LineSampler(record)
    _begun[:] = [sampler]
    _records[:] = [record]
    atexit.register(sampler.close)
    return sampler


def begin_script() -> None:
    """Begin in a training script of ours, before it imports what is large; its arguments name the run's folder."""
    names = [word for word in sys.argv if word.startswith("--run-dir=")]
    after = sys.argv[1 + sys.argv.index("--run-dir") :] if "--run-dir" in sys.argv else []
    folder = names[0].partition("=")[2] if names else next(iter(after), "")
    if folder:
        try:
            begin(Path(folder))
        except Exception as error:  # noqa: BLE001 - the edge between the observer and a training
            print(f"observer: does not record the job's time, because {error!r}", file=sys.stderr)


def sampler_of_rank(
    run_dir: Path,
    rank: int,
    look: Callable[[], tuple[int, str | None]],
    on_flush: Callable[[], object] = lambda: None,
    memory: Callable[[], int | None] = lambda: None,
) -> LineSampler:
    """The sampler of a process that trains now. on_flush, memory: as of `LineSampler.write_to`."""
    sampler = begin(run_dir)
    _records[0].now = look
    _records[0].is_rank(run_dir, rank)
    sampler.write_to(run_dir, rank, on_flush, memory)
    return sampler


def belongs(frame: FrameType | None, part: str) -> None:
    """As of the record of this process, if it has one."""
    if _records and _records[0].pid == os.getpid():
        _records[0].belongs(frame, part)
