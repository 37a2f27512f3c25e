"""A third backend, of the tests only: a queue of processes on this machine that runs one job at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiment.exercises import Experiment
from harness.launch.argv import Word
from harness.launch.backends.local import free_port
from harness.launch.backends.protocol import Listed, PolledState, Render, Submission, Together
from harness.run import Run
from harness.site.site import Site

TEMPLATE = Path(__file__).with_name("queue.j2")
RUNS_HERE = False
POLL_S = 0.2

jobs: dict[str, subprocess.Popen[bytes]] = {}
asked_to_end: set[str] = set()


def directives(asked: Experiment, site: Site, _cpus: int | None) -> list[str]:
    return [f"ranks={asked.gpus_per_node}", f"time={site.time}"]


def warnings(asked: Experiment, _site: Site, _environ: Mapping[str, str]) -> list[str]:
    return ["the queue has one node only"] if asked.nodes > 1 else []


def refusals(output_dir: str) -> list[str]:
    return [f"{output_dir}: the queue writes no log there"] if "no-log" in output_dir else []


def submit(asked: Submission) -> Run:
    number = str(len(jobs) + 1)
    Run(asked.stage.path).write_record(asked.record.model_copy(update={"job_id": number}))
    run = asked.stage.publish(asked.name_for(number), number)
    environment = {**os.environ, "QUEUE_JOB_ID": number, "QUEUE_PORT": str(free_port())}
    lock = asked.stage.output_dir / "queue.lock"
    argv = ["flock", "--close", str(lock), "bash", str(run.script)]
    with logs(run)[0].open("wb") as log:
        jobs[number] = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
    return run


def submit_together(_asked: Sequence[Submission], _way: Together, _at_once: int | None, _render: Render) -> list[Run]:
    raise NotImplementedError


def listed(runs: Sequence[Run], places: bool = False) -> dict[Path, Listed] | None:
    return {run.path: Listed(poll(run)) for run in runs}


def most_together(_way: Together) -> int:
    return 0


def submit_after(_run: Run, _argv: list[Word], _over: bool) -> str:
    raise NotImplementedError


def poll(run: Run) -> PolledState:
    ended = jobs[run.job_id].poll()
    own = run.status()
    if ended is None:
        ending = run.job_id in asked_to_end
        return PolledState("running", ending=ending) if own else PolledState("queued", "another job runs")
    return PolledState(own.state if own else "cancelled" if ended == -signal.SIGTERM else "failed")


def cancel(run: Run) -> list[Run]:
    own = run.status()
    asked_to_end.add(run.job_id)
    os.kill(own.pid if own and own.pid else jobs[run.job_id].pid, signal.SIGTERM)
    return []


def kill_s(_run: Run) -> float:
    return 40.0  # as queue.j2 has it


def logs(run: Run) -> list[Path]:
    return [run.log_dir / "queue.log"]
