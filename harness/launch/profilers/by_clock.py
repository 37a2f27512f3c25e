"""An nsys that records by the clock: its training is told when, and a duration ends the recording alone.

`nsys profile --duration=S` ends with the recording: it either kills the program or leaves it, and its exit status is
lost (seen with 2022.4, also with --wait=all). So this program sets a timer and becomes `nsys profile` in a session
of a name, which `nsys stop` ends. Runs by its path and with the standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_RECORDED = "HARNESS_RECORDED_NS"  # as harness.common.metrics_lines reads it
_LOOK_AGAIN_S = 0.5


def main(argv: list[str]) -> str:
    """`DELAY DURATION WORD… nsys profile WORD…`, in seconds, duration 0: to the end; returns only an error."""
    delay, duration, words = int(argv[0]), int(argv[1]), argv[2:]
    begin_ns = time.time_ns() + delay * 10**9
    os.environ[_RECORDED] = f"{begin_ns} {begin_ns + duration * 10**9 if duration else 0}"
    if duration:
        at, session = words.index("profile"), f"harness-{os.getpid()}"
        if os.fork() == 0:
            _stop(words[at - 1], session, delay + duration)
        words.insert(at + 1, f"--session-new={session}")
    try:
        os.execvp(words[0], words)
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


def _stop(nsys: str, session: str, seconds: int) -> None:
    """Stop the session when the time has come; earlier, end with nsys. Never returns."""
    recorder, end = os.getppid(), time.monotonic() + seconds
    if os.fork():  # nsys shall not find a child that it did not start
        os._exit(0)
    while time.monotonic() < end:
        time.sleep(min(_LOOK_AGAIN_S, max(0.0, end - time.monotonic())))
        if not Path(f"/proc/{recorder}").exists():
            os._exit(0)
    try:
        os.execvp(nsys, [nsys, "stop", f"--session={session}"])
    except OSError as error:
        print(f"{nsys} stop: cannot be started ({error.strerror})", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
