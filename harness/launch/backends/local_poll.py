"""What a run on this machine, or its process, says of its state. It changes nothing.

Part of the local backend.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from harness.common.bounded_read import read_bounded_text, read_end
from harness.launch.backends import processes
from harness.launch.backends.protocol import PolledState
from harness.run import FINAL, Run, State, Status

SUBMITTER = "submitter"  # in the controller's folder: the process that starts it
_LAST_WORDS_BYTES = 1 << 16  # of a log, for its last line
STARTING_S = 60  # between a run's publication and its controller's start lie the imports of submitit
ENDING = "it was asked to end, and is closing its traces"


def poll(run: Run) -> PolledState:
    """The state that the run itself wrote, checked against its process."""
    own = run.status()
    if own is not None and own.told_by is not None:
        return PolledState(own.state, own.why)
    state = _state(run, own)
    if state in FINAL:
        killed = state == "failed" and (own is None or own.state == "running")
        return (
            PolledState(state, _how_it_ended(run), told_by=socket.gethostname())
            if killed
            else PolledState(state)
        )
    if state == "unknown":
        return PolledState(state, _why_unknown(run, own))
    ending = asked_to_end(run).is_file()
    return PolledState(state, ENDING if ending else "", ending=ending)


def _state(run: Run, own: Status | None) -> State:
    if own is None:
        return _state_before_it_began(run)
    if own.state == "running" and not is_alive(run, own.pid, own.host):
        later = run.status()  # it may have written its end since the first reading
        if later is not None and later.state != "running":
            return later.state
        return "unknown" if _is_elsewhere(run) or controller(run) is None or is_kept(run) else "failed"
    return own.state


def _state_before_it_began(run: Run) -> State:
    if _is_elsewhere(run):
        return "unknown"
    young = time.time_ns() - run.record.created_ns < STARTING_S * 1_000_000_000
    if is_kept(run) or (young and controller(run) is None and _submitter_lives(run)):
        return "queued"
    own = run.status()  # as in `_state`
    return own.state if own is not None else "failed"


def _why_unknown(run: Run, own: Status | None) -> str:
    if not _is_elsewhere(run) and is_kept(run):
        return "its script was killed; the processes that it started are being ended"
    last = "it has written nothing yet" if own is None else f"the last state that it wrote: {own.state}"
    if _is_elsewhere(run):
        return f"it was started on {run.record.submit_host}, whose processes cannot be seen from here; {last}"
    return f"its processes cannot be found; {last}"


def _submitter_lives(run: Run) -> bool:
    """False when the process that would start the run's controller was killed."""
    try:
        pid = int(read_bounded_text(run.controller_dir / SUBMITTER))
    except (OSError, ValueError):
        return True  # it does not say who it is
    return processes.is_alive(pid)


def _how_it_ended(run: Run) -> str:
    """Why a failed run did not write its end, with the last line of its controller's log."""
    lines = [
        line
        for log in sorted(run.controller_dir.glob("*_log.err"))
        for line in _end_of(log).splitlines()
        if line.strip() and not line.startswith("submitit ")
    ]
    message = f": {lines[-1].strip()}" if lines else ""
    return f"it ended without an exit status: a full disk, a very short time limit, or a kill{message}"


def _end_of(log: Path) -> str:
    """The last lines of a log; empty if it cannot be read."""
    try:
        return read_end(log, _LAST_WORDS_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def controller(run: Run) -> int | None:
    """The id of the process that started the run and waits for its end, from the names of submitit's files."""
    numbers = [p.name.partition("_")[0] for p in run.controller_dir.glob("*_submitted.pkl")]
    return next((int(n) for n in numbers if n.isdigit()), None)


def asked_to_end(run: Run) -> Path:
    return run.controller_dir / "asked-to-end"


def is_alive(run: Run, pid: int | None, host: str | None) -> bool:
    """True when `pid` still is this run's script: another process may have the number now."""
    if host != socket.gethostname():
        return False
    return pid is not None and processes.was_started_with(pid, run.script)


def _is_elsewhere(run: Run) -> bool:
    """True when another machine started the run: its processes cannot be seen from here."""
    return run.record.submit_host != socket.gethostname()


def is_kept(run: Run) -> bool:
    """True while the run's controller lives."""
    pid = None if _is_elsewhere(run) else controller(run)
    return pid is not None and processes.was_started_with(pid, run.controller_dir)
