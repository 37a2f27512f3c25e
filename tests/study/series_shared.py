"""What the tests of many runs share: points, runs as they would lie on disk, and runs that only sleep.

`quick_runs` takes the place of submitit's controller: a shell that makes its record, then writes the status that
a job writes, and trains nothing. All else is the local backend's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.exercises import DDP
from harness.launch.backends import local
from harness.run import Run, Stage
from harness.run.record import NodeStatus, RunRecord, State, Status
from harness.site.site import Site, load_site, override
from harness.study.series.points import SeriesPoint, SeriesTask, prepared

SECOND_NS = 1_000_000_000

# As submitit's controller, it begins only once who started it has written its pickle: one that was killed before has
# submitted nothing.
SCRIPT = """
run=$1 folder=$2 seconds=$3 submitter=$4 pickle="$2/$$_submitted.pkl"
until [ -e "$pickle" ]; do kill -0 "$submitter" 2>/dev/null || [ -e "$pickle" ] || exit; sleep 0.01; done
write() { printf '%s' "$1" >"$run/.s" && mv "$run/.s" "$run/status.json"; }
started=$(date +%s%N)
trap 'write "{\\"state\\": \\"cancelled\\", \\"started_ns\\": $started, \\"ended_ns\\": $(date +%s%N)}"; exit' TERM
write '{"state": "running", "pid": '$$', "host": "'$(hostname)'", "started_ns": '$started'}'
sleep "$seconds" & wait
write '{"state": "completed", "started_ns": '$started', "ended_ns": '$(date +%s%N)'}'
"""


def site(time_limit: str = "00:10:00") -> Site:
    """This machine without GPUs."""
    return override(load_site("local").model_copy(update={"device": "cpu"}), {"time": time_limit})


def site_file(folder: Path) -> str:
    """A site like it, as a file."""
    path = folder / "here.yaml"
    path.write_text(json.dumps({"name": "here", "description": "x", "scheduler": "local", "device": "cpu"}))
    return str(path)


def point(size: int, repeat: int = 0, time_limit: str = "00:10:00", ranks: int = 1) -> SeriesPoint:
    asked = DDP(gpus_per_node=ranks, micro_batch_size=size, profiler="none")
    return SeriesPoint(f"micro_batch_size={size}", asked, site(time_limit), repeat, ["slurm.sh", "-e", "1"])


def tasks(count: int, time_limit: str = "00:10:00", ranks: int = 1) -> list[SeriesTask]:
    return prepared([point(size, time_limit=time_limit, ranks=ranks) for size in range(1, count + 1)])


def a_run(root: Path, task: SeriesTask, state: State | None, *, number: int, series: str = "s") -> Run:
    """A run of the point as it lies on disk after this end, a minute after its start; None: it never began."""
    now = time.time_ns() - 3600 * SECOND_NS
    experiment: Any = task.prepared.experiment
    record = RunRecord(
        job_id=f"local-{number}", backend="local", experiment=experiment, site=task.point.site,
        job=task.prepared.job.as_json(), command=[], git={}, versions={}, user="someone",
        submit_host=socket.gethostname(), created_ns=now + number, part=task.point.part(series),
    )  # fmt: skip
    with Stage(root / "exercise_1_DDP") as stage:
        Run(stage.path).write_record(record)
        run = stage.publish(task.prepared.job.name_for(record.job_id), record.job_id)
    if state is not None:
        end = Status(state=state, started_ns=now, ended_ns=now + 60 * SECOND_NS)
        run.write_status(end)
        run.write_record(record.model_copy(update={"status": end, "nodes": list[NodeStatus]()}))
    return run


def quick_runs(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on, a local run sleeps for so long and completes."""

    def start(script: Path, _job_id: str, folder: Path, **_: object) -> None:
        given = (str(script), str(script.parent), str(folder), str(seconds), str(os.getpid()))
        words: Sequence[str] = ("bash", "-c", SCRIPT, *given)
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(words, start_new_session=True, stdout=quiet, stderr=quiet)
        (folder / f"{process.pid}_submitted.pkl").touch()

    patch.setattr(local, "start_controller", start)
    patch.setattr(local, "POLL_S", 0.02)
    patch.setattr("harness.launch.record.git_state", lambda: {})
    os.environ.setdefault("HARNESS_SITE", "local")
