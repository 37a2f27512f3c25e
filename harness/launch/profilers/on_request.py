"""An nsys that records again when `slurm.sh capture` asks: after the training's own window, and with the same options.

This program becomes `nsys profile` in a session of a name. A process beside it looks for requests and lets `nsys
start` prepare the session's next recording, which the training itself begins and ends, as it does with its window: no
step waits for nsys, and the recording has whole steps. Seen with 2022.4: what is prepared cannot be taken back (`nsys
cancel`: not implemented), and while a report is being written nothing can be prepared ("Configuring is not allowed in
this state"). Runs by its path, and until it has become nsys with the standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from harness.common.captures import CaptureRequest

_LOOK_AGAIN_S = 0.5
_TRY_AGAIN_S = 2.0
_ANSWERS_WITHIN_S = 120
_OUTPUT = "--output="
_WRITTEN = (".nsys-rep", ".sqlite")


def main(argv: list[str]) -> str:
    """`COUNT OPTION… WORD… nsys profile WORD…`; the first COUNT are of `nsys start`; returns only an error."""
    count = int(argv[0])
    options, words = argv[1 : count + 1], argv[count + 1 :]
    at, session = words.index("profile"), f"harness-{os.getpid()}"
    output = next(word for word in words[at:] if word.startswith(_OUTPUT)).removeprefix(_OUTPUT)
    if os.fork() == 0:
        _watch(Recorder(words[at - 1], session, options, Path(output)))
    words.insert(at + 1, f"--session-new={session}")
    try:
        os.execvp(words[0], words)
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


def _watch(recorder: Recorder) -> None:
    """Serve requests until nsys has ended. Never returns."""
    nsys = os.getppid()
    if os.fork():  # nsys shall not find a child that it did not start
        os._exit(0)
    sys.path.insert(0, str(Path(__file__).parents[3]))  # the environment is the training's, and stays unchanged
    while Path(f"/proc/{nsys}").exists():
        try:
            recorder.look()
        except OSError as error:  # a full disk must not end what a later request needs
            print(f"capture: {error}", file=sys.stderr, flush=True)
        time.sleep(_LOOK_AGAIN_S)
    os._exit(0)


class Recorder:
    """The session of one nsys, whose own report is `<output>.nsys-rep` in the run's folder nsys/."""

    def __init__(self, nsys: str, session: str, options: Sequence[str], output: Path) -> None:
        self._nsys, self._session, self._options = nsys, session, options
        self._output, self._run = output, output.parent.parent
        self._served = 0  # number of the last request that this nsys was made ready for
        self._prepared: Path | None = None  # where the recording that it is ready for will be, without a suffix
        self._next_try_s = 0.0

    def look(self) -> None:
        """Answer the last request, if it is a new one; see whether its recording is written."""
        from harness.common.captures import given_up_file, read_request

        asked = read_request(self._run)
        if asked is None:
            return
        if asked.number > self._served and not given_up_file(self._run, asked.number).exists():
            self._prepare(asked)
        elif asked.number == self._served and self._prepared is not None and self._is_written(self._prepared):
            self._finish(asked, self._prepared)

    def _prepare(self, asked: CaptureRequest) -> None:
        from harness.common.captures import folder_of

        if time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + _TRY_AGAIN_S
        wanted = folder_of(self._run, asked.number) / self._output.name
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if self._prepared is None:
            why_not = self._start(wanted)
            if why_not:
                self._say(asked, "busy", why_not)
                return
            self._prepared = wanted
        self._served = asked.number
        self._say(asked, "ready", "")

    def _start(self, wanted: Path) -> str:
        """Prepare the session's next recording; returns why nsys would not, else an empty text."""
        if not self._output.with_name(f"{self._output.name}.nsys-rep").exists():
            return "the run's own recording has not ended"
        done = self._ask("start", f"--session={self._session}", f"{_OUTPUT}{wanted}", *self._options)
        if done.returncode == 0:
            return ""
        lines = (done.stderr + done.stdout).strip().splitlines()
        return f"nsys start: {lines[-1] if lines else f'exit status {done.returncode}'}"

    def _is_written(self, prepared: Path) -> bool:
        """Whether nsys has begun to write it, and is no longer at it."""
        if not prepared.with_name(f"{prepared.name}.nsys-rep").exists():
            return False
        sessions = self._ask("sessions", "list").stdout.splitlines()
        return any(line.split()[-1:] == [self._session] and "Launched" in line.split() for line in sessions)

    def _finish(self, asked: CaptureRequest, prepared: Path) -> None:
        from harness.common.captures import folder_of

        for suffix in _WRITTEN:  # prepared for a request that was taken back, it was recorded for this one
            written = prepared.with_name(prepared.name + suffix)
            if written.exists():
                written.replace(folder_of(self._run, asked.number) / written.name)
        self._prepared = None
        self._say(asked, "done", "")

    def _say(self, asked: CaptureRequest, what: Literal["busy", "ready", "done"], text: str) -> None:
        from harness.common.captures import answer_file

        answer_file(self._run, asked.number, self._output.name, what).write_text(text, encoding="utf-8")

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [self._nsys, *words]
        try:
            return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 1, "", f"no answer within {_ANSWERS_WITHIN_S} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
