"""Runs that no backend of ours has started: `observe` made them in a job, or beside a program, that the user started.
Their state is what they wrote themselves, checked against Slurm or against the process that wrote it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.common.errors import RequestError, WorkError
from harness.common.paths import TEMPLATES
from harness.common.run_folder.job_folder import BACKEND, HERE
from harness.common.system import processes
from harness.launch.backends import slurm
from harness.launch.backends.protocol import Listed, PolledState
from harness.run import Run
from harness.run.record import FINAL, Status

NAME = BACKEND
TEMPLATE = TEMPLATES / "local.j2"
RUNS_HERE = HELD = False
POLL_S = slurm.POLL_S


def _in_job(run: Run) -> bool:
    """Whether a Slurm job is around it."""
    return not run.job_id.startswith(f"{HERE}-")


def poll(run: Run) -> PolledState:
    own = run.status()
    if own is not None and own.state in FINAL:
        return _as_written(run, own)
    if _in_job(run):
        found = slurm.poll(run)
        return _ended_before(run, own) if found.state == "completed" else found
    if own is None or own.host != socket.gethostname():
        where = f"it was started on {run.record.submit_host}, whose processes cannot be seen from here"
        return PolledState("unknown", where)
    return PolledState("running") if own.pid and processes.lives(own.pid) else _ended_before(run, run.status())


def _as_written(run: Run, status: Status) -> PolledState:
    """Its own word, with what its ranks left."""
    from harness.run.ended import as_written  # here: a dry run reads no run

    end = as_written(run, status)
    return PolledState(end.state, end.why or end.note)


def _ended_before(run: Run, status: Status | None) -> PolledState:
    """Of a run whose job has ended without a word of it."""
    if status is not None and status.state in FINAL:
        return _as_written(run, status)
    from harness.run.ended import end_of

    end = end_of(run, None)
    why = end.note or "; ".join(filter(None, ["it ended before it could write its exit status", end.why]))
    return PolledState(end.state, why, told_by="ended")


def listed(runs: Sequence[Run]) -> dict[Path, Listed] | None:
    """One question to Slurm for those of jobs; the others say their state themselves."""
    open_ones = [run for run in runs if (own := run.status()) is None or own.state not in FINAL]
    in_jobs = [run for run in open_ones if _in_job(run)]
    found = slurm.listed(in_jobs) if in_jobs else {}
    here = {run.path: Listed(poll(run)) for run in runs if run not in in_jobs}
    return None if found is None else {**here, **found}


def cancel(run: Run) -> list[Run]:
    """Cancel the job that it is in, with all else in it. Raises WorkError: there is none, or Slurm refused."""
    if not _in_job(run):
        raise WorkError(f"{run.name}: you started it yourself, so you end it yourself: nothing was cancelled")
    return slurm.cancel(run)


def logs(run: Run) -> list[Path]:
    """The job's own log is where its script says."""
    return []


def _nothing(*_: object) -> list[Any]:
    """There are no directives and nothing to submit."""
    return []


directives = warnings = refusals = _nothing


def _refuse(*_: object) -> NoReturn:
    """Raises RequestError: nothing is submitted this way."""
    raise RequestError("observe runs in a job that there is: it submits nothing")


submit = submit_together = submit_after = _refuse


def most_together(_way: object) -> int:
    return 0
