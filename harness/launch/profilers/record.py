"""What runs beside an nsys: its session is stopped by the clock, or records again when `slurm.sh capture` asks.

By the clock: `nsys profile --duration=S` ends with the recording; it either kills the program or leaves it, and its
exit status is lost (seen with 2022.4, also with --wait=all). So the recording is a session of a name, and `nsys stop`
ends it.

On request: `nsys start` prepares the session's next recording, which the training itself begins and ends, as it does
with its window: no step waits for nsys, and the recording has whole steps. Seen with 2022.4: what is prepared cannot
be taken back (`nsys cancel`: not implemented), and while a report is being written nothing can be prepared
("Configuring is not allowed in this state").

Standard library only, but for what serves a request: a rank's own Python runs this too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from harness.common.run_folder.captures import CaptureRequest

RECORDED = "HARNESS_RECORDED_NS"  # as harness.common.run_folder.metrics_lines reads it
OUTPUT = "--output="
_LOOK_AGAIN_S = 0.5
_TRY_AGAIN_S = 2.0
_ANSWERS_WITHIN_S = 120
_WRITTEN = (".nsys-rep", ".sqlite")

Lives = Callable[[], bool]


class Session(NamedTuple):
    """nsys's words as they are started, variables for what it records, and what to do beside it while it lives."""

    words: list[str]
    variables: dict[str, str]
    beside: Callable[[Lives], None] | None


def output_of(words: Sequence[str]) -> Path | None:
    """Where nsys writes, as its words tell it."""
    return next((Path(word[len(OUTPUT) :]) for word in words if word.startswith(OUTPUT)), None)


def session_of(words: Sequence[str], name: str, again: Sequence[str] | None = None) -> Session:
    """The session of `nsys profile …`, with a name where something beside it needs one. again: the options of `nsys
    start`, by which it may record again; None: it may not."""
    delay, duration = (seconds_of(words, option) for option in ("delay", "duration"))
    named = [*words[:2], f"--session-new={name}", *words[2:]]
    if not (delay or duration):
        output = output_of(words)
        if again is None or output is None:
            return Session(list(words), {}, None)
        return Session(named, {}, Recorder(words[0], name, again, output).serve)
    begin_ns = time.time_ns() + delay * 10**9
    variables = {RECORDED: f"{begin_ns} {begin_ns + duration * 10**9 if duration else 0}"}
    if not duration:
        return Session(list(words), variables, None)
    kept = [word for word in named if not word.startswith(("--duration=", "--kill="))]
    end_s = time.monotonic() + delay + duration
    return Session([*kept, "--kill=none"], variables, lambda lives: _stop(words[0], name, end_s, lives))


def seconds_of(words: Sequence[str], option: str) -> int:
    """Of a recording by the clock, what nsys's option says; 0: a range of the training begins and ends it."""
    if any(word.startswith("--capture-range=") and word != "--capture-range=none" for word in words):
        return 0
    text = next((word.partition("=")[2] for word in words if word.startswith(f"--{option}=")), "")
    return int(text) if text.isdecimal() else 0


def _stop(nsys: str, session: str, end_s: float, lives: Lives) -> None:
    """Stop the session when the time has come; earlier, end with nsys."""
    while time.monotonic() < end_s:
        time.sleep(min(_LOOK_AGAIN_S, max(0.0, end_s - time.monotonic())))
        if not lives():
            return
    try:
        subprocess.run([nsys, "stop", f"--session={session}"], check=False)
    except OSError as error:
        print(f"{nsys} stop: cannot be started ({error.strerror})", file=sys.stderr, flush=True)


def become(words: Sequence[str], program: Sequence[str], again: Sequence[str] | None = None) -> str:
    """Become nsys with the program; what has to be done beside it is done by a process that is not its child. Returns
    only an error."""
    started = session_of(words, f"harness-{os.getpid()}", again)
    os.environ.update(started.variables)
    if started.beside is not None and os.fork() == 0:
        nsys = os.getppid()
        if os.fork() == 0:  # nsys shall not find a child that it did not start
            started.beside(Path(f"/proc/{nsys}").exists)
        os._exit(0)
    try:
        os.execvp(started.words[0], [*started.words, *program])
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


class Recorder:
    """The session of one nsys, whose own report is `<output>.nsys-rep` in the run's folder nsys/."""

    def __init__(self, nsys: str, session: str, options: Sequence[str], output: Path) -> None:
        self._nsys, self._session, self._options = nsys, session, options
        self._output, self._run = output, output.parent.parent
        self._served = 0  # number of the last request that this nsys was made ready for
        self._prepared: Path | None = None  # where the recording that it is ready for will be, without a suffix
        self._next_try_s = 0.0

    def serve(self, lives: Lives) -> None:
        """Answer requests while nsys lives."""
        sys.path.insert(0, str(Path(__file__).parents[3]))  # the environment is the training's, and stays unchanged
        while lives():
            try:
                self.look()
            except OSError as error:  # a full disk must not end what a later request needs
                print(f"capture: {error}", file=sys.stderr, flush=True)
            time.sleep(_LOOK_AGAIN_S)

    def look(self) -> None:
        """Answer the last request, if it is a new one; see whether its recording is written."""
        from harness.common.run_folder.captures import given_up_file, read_request

        request = read_request(self._run)
        if request is None:
            return
        if request.number > self._served and not given_up_file(self._run, request.number).exists():
            self._prepare(request)
        elif request.number == self._served and self._prepared is not None and self._is_written(self._prepared):
            self._finish(request, self._prepared)

    def _prepare(self, request: CaptureRequest) -> None:
        from harness.common.run_folder.captures import folder_of

        if time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + _TRY_AGAIN_S
        wanted = folder_of(self._run, request.number) / self._output.name
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if self._prepared is None:
            if not self._starts(wanted):
                return
            self._prepared = wanted
        self._served = request.number
        self._say(request, "ready")

    def _starts(self, path: Path) -> bool:
        """Prepare the session's next recording, once the run's own has ended; returns whether nsys does."""
        if not self._output.with_name(f"{self._output.name}.nsys-rep").exists():
            return False
        return not self._ask("start", f"--session={self._session}", f"{OUTPUT}{path}", *self._options).returncode

    def _is_written(self, prepared: Path) -> bool:
        """Whether nsys has begun to write it, and is no longer at it."""
        if not prepared.with_name(f"{prepared.name}.nsys-rep").exists():
            return False
        sessions = self._ask("sessions", "list").stdout.splitlines()
        return any(line.split()[-1:] == [self._session] and "Launched" in line.split() for line in sessions)

    def _finish(self, request: CaptureRequest, prepared: Path) -> None:
        from harness.common.run_folder.captures import folder_of

        for suffix in _WRITTEN:  # prepared for a request that was taken back, it was recorded for this one
            written = prepared.with_name(prepared.name + suffix)
            if written.exists():
                written.replace(folder_of(self._run, request.number) / written.name)
        self._prepared = None
        self._say(request, "done")

    def _say(self, request: CaptureRequest, what: Literal["ready", "done"]) -> None:
        from harness.common.run_folder.captures import answer_file

        answer_file(self._run, request.number, self._output.name, what).touch()

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [self._nsys, *words]
        try:
            return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 1, "", f"no answer within {_ANSWERS_WITHIN_S} s")
