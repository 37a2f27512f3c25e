"""Why a run failed, in a sentence: which signal ended it and what usually sends that, or that its disk is full."""

from __future__ import annotations

import os
import signal

from harness.run import FINAL, Run

LEAST_BYTES = 1 << 16  # a disk with less is full: a log and a status are as large
USUALLY = {
    "KILL": "the system does this if memory runs out: try a smaller batch or model",
    "SEGV": "a library crashed: its last lines are in the log",
    "ABRT": "a library aborted: its last lines in the log give the reason",
    "BUS": "often /dev/shm is full, which the ranks share",
    "TERM": "something other than slurm.sh cancel asked it to stop",
    "FPE": "a library divided by zero",
    "XFSZ": "a file became larger than the limit of this account (ulimit -f)",
    "XCPU": "it used more CPU time than this account may use (ulimit -t)",
}
PROGRAMS = {126: "a program could not be executed", 127: "a program was not found"}


def what_it_means(code: int | None) -> str:
    """A sentence for a status that a shell gave a meaning to; empty for any other.

    >>> what_it_means(139)
    'exit 139: ended by the signal SEGV; a library crashed: its last lines are in the log'
    >>> what_it_means(7)
    ''
    """
    if code in PROGRAMS:
        return f"exit {code}: {PROGRAMS[code]}; the log names it"
    if code is None or not 128 < code < 128 + signal.NSIG:
        return ""
    try:
        name = signal.Signals(code - 128).name.removeprefix("SIG")
    except ValueError:
        return ""
    usually = f"; {USUALLY[name]}" if name in USUALLY else ""
    return f"exit {code}: ended by the signal {name}{usually}"


def why_it_wrote_no_more(run: Run) -> str:
    """That its disk is full, of a run that could not write how it ended; empty if there is space."""
    own = run.status()
    if own is not None and own.state in FINAL:
        return ""
    try:
        disk = os.statvfs(run.path)
    except OSError:
        return ""
    if disk.f_bavail * disk.f_frsize >= LEAST_BYTES:
        return ""
    return f"it ended without an exit status: the disk of {run.path} is full; free some space, and start it again"
