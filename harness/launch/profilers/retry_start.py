"""An nsys that is started again when it ended before it had started the training.

Of nsys 2022.4 on a busy node, one in some dozens ends within two seconds and has not begun the training: with status 1
("End of file", "sem_open: No such file or directory") or even 0 ("Connection to the Agent lost"). So this program makes
a file and starts nsys, and nsys starts it a second time where the training would be: there it removes the file and
becomes the training. While the file is there, nothing has begun, and nsys can be started again. Runs by its path and
with the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_OUTPUT = "--output="
_TIMES = 3
_APART_S = 1.0
_BEGUN = "begun"


def main(argv: list[str]) -> int | str:
    """`COUNT WORD… PROGRAM…`, the first COUNT words being nsys's, or `begun FILE PROGRAM…`; returns nsys's exit status
    as a shell reports it, or an error."""
    if argv[0] == _BEGUN:
        Path(argv[1]).unlink(missing_ok=True)
        return _become(argv[2:])
    count = int(argv[0])
    words, program = argv[1 : count + 1], argv[count + 1 :]
    output = Path(next(word for word in words if word.startswith(_OUTPUT)).removeprefix(_OUTPUT))
    waits = output.with_name(f".{output.name}.waits")
    try:
        waits.touch()
    except OSError:  # a full disk: what has begun could not be told
        return _become([*words, *program])
    try:
        return _started(words, [sys.executable, "-I", __file__, _BEGUN, str(waits), *program], waits)
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"
    finally:
        waits.unlink(missing_ok=True)


def _started(words: list[str], program: list[str], waits: Path) -> int:
    """Start nsys until it has started the program, or _TIMES times; returns its last exit status."""
    asked_to_stop = False

    def stop(_number: int, _frame: object) -> None:
        # Nothing is passed on: job.sbatch asks every process of a node.
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        if signal.getsignal(number) != signal.SIG_IGN:  # what a shell lets its jobs ignore, nsys ignores too
            signal.signal(number, stop)
    for left in reversed(range(_TIMES)):
        nsys = subprocess.Popen([*words, *program])
        if asked_to_stop:  # before there was an nsys to be asked
            nsys.terminate()
        code = nsys.wait()
        code = 128 - code if code < 0 else code
        if asked_to_stop or not waits.exists():
            break
        code, ended_with = code or 1, code
        time.sleep(_APART_S)
        if asked_to_stop or not waits.exists():  # it has begun late, without nsys: it is not begun twice
            break
        _say(ended_with, left)
    return code


def _say(code: int, left: int) -> None:
    then = "it is started again" if left else f"{_TIMES} times: --profiler torch records without it"
    said = f"nsys ended with status {code} before it had started the training; {then}"
    print(said, file=sys.stderr, flush=True)


def _become(words: list[str]) -> str:
    try:
        os.execvp(words[0], words)
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
