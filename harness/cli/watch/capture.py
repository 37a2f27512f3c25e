"""`slurm.sh capture`: record steps of a training that runs, without starting it again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli.watch.status import RunArgument
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND
from harness.common.run_folder import captures
from harness.common.system.users import owner_of
from harness.experiment.exercises import OwnTraining, ProfiledTraining, read_experiment
from harness.launch.exercises.base import reports_of
from harness.launch.poll import look_at
from harness.run import Run, find_run, write_atomically
from harness.run.record import FINAL

PAUSE_S = 0.5
_OF_NSYS = (
    "; an nsys begins when the run's own recording has ended, and only if its options allow a second one "
    "(else use --profiler torch)"
)


def capture(
    what: Annotated[
        Literal["start", "stop"], typer.Argument(metavar="start|stop", help="start a recording, or end it early")
    ],
    run: RunArgument = "last",
    steps: Annotated[
        int, typer.Option(min=1, max=captures.MOST_STEPS, help="steps to record; a step is a batch")
    ] = captures.STEPS,
    wait_s: Annotated[int, typer.Option("--wait-s", min=0, help="seconds to wait for the traces of all ranks")] = 300,
) -> int:
    """Record some steps of a running training, on every rank, without a restart.

    nsys records if it recorded the run's profiled steps, otherwise torch.profiler. The traces are in the run's folder
    below captures/, and `report` reads them.
    """
    found = find_run(run)
    _refuse(found)
    last = captures.read_request(found.path)
    if what == "stop":
        if last is None or not _is_open(found, last.number):
            raise RequestError(f"capture stop: no recording of {found.job_id} is in progress")
        captures.stop_file(found.path, last.number).touch()
        return _wait(found, last.number, wait_s)
    if last is not None and _is_open(found, last.number):
        raise RequestError(
            f"capture start: recording {last.number} of {found.job_id} is not complete: wait, or "
            f"{COMMAND} capture stop {found.job_id}"
        )
    asked = captures.CaptureRequest(1 if last is None else last.number + 1, steps, len(_reports(found)))
    captures.request_file(found.path).parent.mkdir(exist_ok=True)
    write_atomically(captures.request_file(found.path), captures.as_text(asked))
    print(f"asked {found.job_id} to record {steps} steps", file=sys.stderr)
    return _wait(found, asked.number, wait_s)


def _refuse(run: Run) -> None:
    """Raises RequestError: this run cannot be recorded now, or not by this user."""
    owner = owner_of(run.record_file)
    if owner is not None and os.geteuid() != 0:
        raise RequestError(f"{run.job_id} belongs to {owner}: only {owner} can record it")
    state = look_at(run).state
    if state != "running":
        raise RequestError(f"capture: only a running training can be recorded; the state of {run.job_id} is {state}")
    asked = run.record.experiment
    if not isinstance(asked, ProfiledTraining):
        raise RequestError("capture: this exercise has no training steps to record")
    if _reports(run) and asked.recorded_by_time:
        raise RequestError(
            f"capture: nsys records {run.job_id} by time, so only once: start the run without "
            "--capture-delay and --capture-duration, or with --profiler torch"
        )
    if _reports(run) and asked.nsys_per == "rank":
        raise RequestError(
            f"capture: each rank of {run.job_id} has its own nsys, which can record only once: start the run with "
            "--nsys-per node, or with --profiler torch"
        )


def _reports(run: Run) -> list[str]:
    """The names of the reports that nsys writes of each recording; none where torch.profiler records."""
    if run.record.job.get("profiler") != "nsys":
        return []
    asked = read_experiment(run.record.job["experiment"])
    own = (
        reports_of(asked, "nsys") if isinstance(asked, OwnTraining) else []
    )  # not expected: it may end before its window
    return [Path(path).stem for path in run.record.job["expects"] or own]


def _traces(run: Run) -> list[str]:
    asked = run.record.job["experiment"]
    ranks = range(int(asked["nodes"]) * int(asked["gpus_per_node"] or 1))
    return [f"{name}.nsys-rep" for name in _reports(run)] or [f"rank{rank}.json.gz" for rank in ranks]


def _there(run: Run, number: int) -> int:
    """How many files of a recording are written. Where a report is, nsys may still be at it."""
    reports = _reports(run)
    if reports:
        return sum(captures.answer_file(run.path, number, report, "done").exists() for report in reports)
    return sum((captures.folder_of(run.path, number) / trace).exists() for trace in _traces(run))


def _is_open(run: Run, number: int) -> bool:
    return _there(run, number) < len(_traces(run)) and not captures.given_up_file(run.path, number).exists()


def _wait(run: Run, number: int, wait_s: int) -> int:
    """Wait until every file of a recording is written. Raises WorkError: the run or the time ended before."""
    folder = captures.folder_of(run.path, number)
    all_of_them = f"{len(_traces(run))} {'nodes' if _reports(run) else 'ranks'}"
    end_s, looked_s = time.monotonic() + wait_s, time.monotonic()
    while _is_open(run, number):
        if time.monotonic() > end_s:
            so_far = f"{_there(run, number)} of {all_of_them} have written theirs after {wait_s} s: later, see {folder}"
            raise WorkError(so_far + _OF_NSYS * bool(_reports(run)))
        if time.monotonic() - looked_s > 5:
            looked_s, state = time.monotonic(), look_at(run).state
            if state in FINAL and _is_open(run, number):  # what is there is all there will be
                there = sum((folder / trace).exists() for trace in _traces(run))
                ended = f"{run.job_id} is {state}"
                if there < len(_traces(run)):
                    raise WorkError(f"{ended}: only {there} of {all_of_them} were recorded")
                print(f"{ended}: the recording holds the steps until the end of the run", file=sys.stderr)
                break
        time.sleep(PAUSE_S)
    if captures.given_up_file(run.path, number).exists():
        print(f"nothing was recorded: recording {number} of {run.job_id} had not started")
    else:
        print(f"recorded: {folder}\nnext: {COMMAND} report {folder}")
    return 0
