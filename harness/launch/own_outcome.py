"""What the end of a user's own training leaves open, in a sentence: an exit status of 0 says little of a script that
nobody wrote for the harness. Asked on the first node, when the job ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.experiment.exercises import Own
from harness.run import Run, read_json_lines

_CLOSING_S = 3.0  # helpers of Python's multiprocessing end a moment after their rank
_SHOWN = 5
_NO_STEP = (
    "no step was observed: it called no optimizer and no model's forward, or its Python ran with -I, -E or -S and so "
    "without the observer"
)


def what_is_open(run: Run) -> str:
    """A sentence on a training that ended with status 0; empty if nothing is open, or it is an exercise's."""
    asked = run.record.experiment
    if not isinstance(asked, Own):
        return ""
    if left := _left_behind(run):
        pids = ", ".join(map(str, left[:_SHOWN])) + (", …" if len(left) > _SHOWN else "")
        many = f"{len(left)} processes of it were" if len(left) > 1 else "a process of it was"
        return (
            f"{many} still running when the program had ended (pid {pids}): what came after is not recorded"
        )
    steps = _steps(run)
    return _why_no_trace(run, asked, max(steps)) if any(steps) else _NO_STEP


def _left_behind(run: Run) -> list[int]:
    """The processes of the training that live on this machine."""
    end_s = time.monotonic() + _CLOSING_S
    while (left := list(_started_by(run))) and time.monotonic() < end_s:
        time.sleep(0.2)
    return left


def _started_by(run: Run) -> Iterator[int]:
    wanted = f"HARNESS_OBSERVE={run.path}/".encode()
    own = {os.getpid(), os.getppid()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in own:
            with suppress(OSError):  # another user's, or it has ended
                if any(each.startswith(wanted) for each in (folder / "environ").read_bytes().split(b"\0")):
                    yield int(folder.name)


def _steps(run: Run) -> list[int]:
    """The number of steps of each rank that was observed."""
    found = []
    for path in run.metrics():
        with suppress(OSError, ValueError):
            found.append(sum(line.get("event") == "step" for line in read_json_lines(path)))
    return found


def _why_no_trace(run: Run, asked: Own, took: int) -> str:
    """Where the training ended before its profiled steps."""
    if run.record.job.get("profiler") == "none" or asked.recorded_by_time or run.traces():
        return ""
    window = asked.window
    if took >= window.end:
        return ""
    return (
        f"nothing was profiled: it took {took} step{'s' * (took > 1)}, and the profiled ones are {window.start + 1} to "
        f"{window.end}: let it take more, or lower --skip-steps, --warmup-steps and --active-steps"
    )
