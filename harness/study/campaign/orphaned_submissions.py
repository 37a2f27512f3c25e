"""Submissions that were under way when the runner was killed: a queue may have taken a job that left no run.

Such a job trains nothing: it waits a minute for its run's directory and gives up (templates/job.j2). That minute counts
for the budget; nothing here says what is done.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.common.bounded_read import read_bounded_json
from harness.common.errors import HarnessError
from harness.run import Run, write_atomically
from harness.study.campaign.points import Task
from harness.study.campaign.task_status import slot_of

GIVES_UP_NS = 90 * 1_000_000_000  # its minute of waiting, its start and its end
_PENDING = "submitting-*.json"


@contextmanager
def submitting(folder: Path, tasks: Sequence[Task], runs_here: bool) -> Iterator[None]:
    """Note a submission to a queue while it is under way. On this machine there is no job without a run."""
    if runs_here:
        yield
        return
    note = folder / f"submitting-{time.time_ns()}-{os.getpid()}.json"
    devices = {str(task.point.slot): task.devices for task in tasks}
    write_atomically(note, json.dumps({"since_ns": time.time_ns(), "devices": devices}))
    try:
        yield
    except HarnessError:  # refused: there is no job
        note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)


def orphaned_ns(folder: Path, runs: Sequence[Run]) -> int:
    """Device nanoseconds of jobs that may have waited for nothing, for each task that no run followed."""
    return sum(_cost(note, runs) for note in folder.glob(_PENDING))


def _cost(note: Path, runs: Sequence[Run]) -> int:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        told = read_bounded_json(note)
        since = int(told["since_ns"])
        followed = {str(slot_of(run)) for run in runs if 0 <= run.record.created_ns - since < GIVES_UP_NS}
        return sum(int(n) * GIVES_UP_NS for slot, n in told["devices"].items() if slot not in followed)
    return 0
