"""`slurm.sh capture`: record steps of a training that runs, without starting it again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.runs import RunArgument
from harness.common.captures import (
    MOST_STEPS,
    STEPS,
    Asked,
    as_text,
    folder_of,
    read_request,
    request_file,
    stop_file,
)
from harness.common.errors import RequestError, WorkError
from harness.common.paths import PROGRAM
from harness.common.users import owner_of
from harness.experiment.exercises import Training
from harness.run import FINAL, Run, find_run, write_atomically

PAUSE_S = 0.5


def capture(
    what: Annotated[Literal["start", "stop"], typer.Argument(help="start a recording, or end it early")],
    run: RunArgument = "last",
    steps: Annotated[
        int, typer.Option(min=1, max=MOST_STEPS, help="steps to record; a step is a batch")
    ] = STEPS,
    wait_s: Annotated[
        int, typer.Option("--wait-s", min=0, help="seconds to wait for the traces of all ranks")
    ] = 300,
) -> int:
    """Record some steps of a training that runs, with torch.profiler on every rank; nothing is started again.

    The traces are in the run's folder below captures/, and `slurm.sh report` reads them.
    """
    found = find_run(run)
    _refuse(found)
    last = read_request(found.path)
    recording = last is not None and len(_traces(found, last.number)) < _ranks(found)
    if what == "stop":
        if last is None or not recording:
            raise RequestError(f"capture stop: nothing of {found.job_id} is being recorded")
        stop_file(found.path, last.number).touch()
        return _wait(found, last.number, wait_s)
    if last is not None and recording:
        raise RequestError(
            f"capture start: recording {last.number} of {found.job_id} is not complete: wait, or "
            f"{PROGRAM} capture stop {found.job_id}"
        )
    asked = Asked(1 if last is None else last.number + 1, steps)
    request_file(found.path).parent.mkdir(exist_ok=True)
    write_atomically(request_file(found.path), as_text(asked))
    print(f"asked {found.job_id} to record {steps} steps", file=sys.stderr)
    return _wait(found, asked.number, wait_s)


def _refuse(run: Run) -> None:
    """Raises RequestError: nothing of this run can be recorded now, or not by this user."""
    from harness.launch.submit import look_at

    owner = owner_of(run.record_file)
    if owner is not None and os.geteuid() != 0:
        raise RequestError(f"{run.job_id} belongs to {owner}: only {owner} can record it")
    state = look_at(run).state
    if state != "running":
        raise RequestError(f"capture: {run.job_id} is {state}: only a training that runs can be recorded")
    if not isinstance(run.record.experiment, Training):
        raise RequestError("capture: this exercise trains nothing that could be recorded")
    if run.record.job.get("profiler") == "nsys":
        raise RequestError(
            f"capture: nsys records {run.job_id}, and two profilers cannot share a GPU's counters: start it with "
            "--profiler torch or --no-profile"
        )


def _ranks(run: Run) -> int:
    asked = run.record.job["experiment"]
    return int(asked["nodes"]) * int(asked["gpus_per_node"] or 1)


def _traces(run: Run, number: int) -> list[Path]:
    return sorted(folder_of(run.path, number).glob("rank*.json.gz"))


def _wait(run: Run, number: int, wait_s: int) -> int:
    """Wait until every rank has written its trace; returns the exit code.

    Raises:
        WorkError: the run ended, or the time is over, and some are missing.
    """
    from harness.launch.submit import look_at

    folder, ranks, end_s = folder_of(run.path, number), _ranks(run), time.monotonic() + wait_s
    looked_s = time.monotonic()
    while len(_traces(run, number)) < ranks:
        if time.monotonic() > end_s:
            there = len(_traces(run, number))
            raise WorkError(
                f"{there} of {ranks} ranks have written theirs after {wait_s} s: later, see {folder}"
            )
        if time.monotonic() - looked_s > 5:
            looked_s, state = time.monotonic(), look_at(run).state
            if state in FINAL and len(_traces(run, number)) < ranks:
                raise WorkError(
                    f"{run.job_id} is {state}, and {len(_traces(run, number))} of {ranks} ranks were recorded"
                )
        time.sleep(PAUSE_S)
    print(f"recorded: {folder}\nnext: {PROGRAM} report {folder}")
    return 0
