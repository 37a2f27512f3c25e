"""Slurm's words for a job's state: which state of a run each one is, and what a student should know about it.

The words of squeue, scontrol and sacct (`man squeue`, JOB STATE CODES). Asks nobody.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.run import State


class Meaning(NamedTuple):
    """The state of the run; a sentence if the state alone is not enough; whether its processes are being ended, or do
    not run for a while."""

    state: State
    why: str = ""
    ending: bool = False
    suspended: bool = False


_AGAIN = "Slurm puts it back into the queue, and it will run again under the same id"
_HELD = "Slurm put it back into the queue and holds it there: scontrol release {job}, or cancel it"
_PAUSED = "Slurm has suspended it: its step times will not be valid"

MEANINGS: dict[str, Meaning] = {
    "PENDING": Meaning("queued"),
    "CONFIGURING": Meaning("queued", "its nodes are being configured"),
    "POWER_UP_NODE": Meaning("queued", "its nodes are being powered up"),
    "REQUEUED": Meaning("queued", _AGAIN),
    "REQUEUE_FED": Meaning("queued", _AGAIN),
    "EXPEDITING": Meaning("queued", _AGAIN),
    "REQUEUE_HOLD": Meaning("queued", _HELD),
    "SPECIAL_EXIT": Meaning("queued", _HELD),
    "RESV_DEL_HOLD": Meaning(
        "queued", "its reservation was deleted, so Slurm holds it: cancel it and submit again"
    ),
    "RUNNING": Meaning("running"),
    "SIGNALING": Meaning("running"),
    "RESIZING": Meaning("running"),
    "STAGE_OUT": Meaning("running", "its commands have ended, and Slurm still copies its files"),
    "SUSPENDED": Meaning("running", _PAUSED, suspended=True),
    "STOPPED": Meaning("running", _PAUSED, suspended=True),
    "COMPLETING": Meaning("running", "it is ending: Slurm waits for its last processes", ending=True),
    "COMPLETED": Meaning("completed"),
    "FAILED": Meaning("failed"),
    "OUT_OF_MEMORY": Meaning("failed", "Slurm ended it because it used more memory than the job requested"),
    "CANCELLED": Meaning("cancelled"),
    "PREEMPTED": Meaning("cancelled", "a job of higher priority took its nodes: submit it again"),
    "REVOKED": Meaning("cancelled", "another cluster of the federation runs this job"),
    "TIMEOUT": Meaning("timeout"),
    "DEADLINE": Meaning("timeout", "it could not have ended before its deadline (--deadline)"),
    "NODE_FAIL": Meaning("node_fail", "one of its nodes failed: submit it again"),
    "BOOT_FAIL": Meaning("node_fail", "one of its nodes could not be started: submit it again"),
    "LAUNCH_FAILED": Meaning("node_fail", "its nodes could not start it: submit it again"),
    "RECONFIG_FAIL": Meaning("node_fail", "one of its nodes could not be set up for it: submit it again"),
}


def meaning_of(word: str, job: str) -> Meaning:
    """What a word means for job number `job`; as sacct writes it too, `CANCELLED by 1000` and `CANCELLED+`."""
    name = plain(word)
    if name not in MEANINGS:  # not an end: who waits goes on waiting
        return Meaning("unknown", f"Slurm's state {name} is not known here")
    found = MEANINGS[name]
    return found._replace(why=found.why.format(job=job))


def plain(word: str) -> str:
    """The word alone."""
    return (word.split() or [""])[0].rstrip("+")
