"""The observer without a command of ours before the training, as a module of a site loads it: the first rank that
trains makes the run, and the first one of a node starts what stands beside it. A process that does not train leaves
nothing."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from harness.common.run_folder import job_folder
from harness.common.run_folder.heartbeats import MEMORY
from harness.common.run_folder.job_folder import JoinedProcess, RunRequest
from harness.observe.heartbeat import PROGRESS
from harness.observe.job_time import process_began_ns

_ROOT = Path(__file__).resolve().parents[2]


def settings() -> dict[str, Any]:
    """What is observed: steps, lines and heartbeats."""
    return job_folder.settings_of(_request(), os.environ)


def _request() -> RunRequest:
    words = [*getattr(sys, "orig_argv", [sys.executable, *sys.argv])]
    return RunRequest(command=words, typed=["training-traces", job_folder.WORD, "--", *words], start_in=_started_in)


try:
    _started_in = str(Path.cwd())
except OSError:  # the folder is gone
    _started_in = "/"


@cache
def run_folder() -> Path:
    """This process's run, which begins with its first call. Raises NoFolderError, OSError: there is no place for it."""
    environ, request = dict(os.environ), _request()
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    joined = job_folder.join(environ, Path(main or sys.argv[0] or "python").name, _started_in)
    # What this process starts from now on belongs to this run: a compiler's workers have its RANK, and are no ranks.
    os.environ[job_folder.VARIABLE] = str(job_folder.write_settings(joined, request, environ))
    if joined.memory is not None:
        os.environ[MEMORY] = str(joined.memory)
    if joined.first:
        job_folder.write_run(joined, request, environ, {}, process_began_ns())
        atexit.register(_ended, joined, os.getpid())
    if joined.first_here and joined.memory is not None and os.environ.get(job_folder.PYTHON):
        _stand_beside(joined, os.environ[job_folder.PYTHON])
    return joined.path


def _ended(joined: JoinedProcess, pid: int) -> None:
    """The first rank's Python ends: so far as it knows, the training has ended."""
    if os.getpid() == pid:
        state = "failed" if PROGRESS.error else "completed"
        job_folder.write_end(joined, state, None)


def _stand_beside(joined: JoinedProcess, python: str) -> None:
    """Start the program of the node, which ends with the training, as nobody's child: a script may wait for its own."""
    host = os.uname().nodename.partition(".")[0]
    argv = [python, "-m", "harness.heartbeats.node", f"--run={joined.path}", f"--node={joined.node}", "--name"]
    argv += [f"{host}-{joined.node}" if joined.node else host, f"--pid={_root()}"]
    environ = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environ.update({"PYTHONPATH": str(_ROOT), job_folder.VARIABLE: job_folder.OFF[0]})
    nothing = subprocess.DEVNULL
    subprocess.call(
        ["sh", "-c", 'exec nice -n 10 "$@" &', "sh", *argv],
        env=environ,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )


def _root() -> int:
    """The process whose end is that of the node's part: a launcher that made this process a rank, else this one."""
    return os.getppid() if os.environ.get("LOCAL_RANK", "").isdecimal() else os.getpid()
