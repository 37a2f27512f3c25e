"""From a request to a run: resolve, check, stage, hand to a backend, publish. Ties the four together, no more."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from harness.common.errors import WorkError
from harness.common.paths import ROOT
from harness.experiment.exercises import Experiment
from harness.launch.backends import local, slurm
from harness.launch.check import check, check_script, with_whole_paths
from harness.launch.job import Job, resolve
from harness.launch.outcome import why_nothing_was_recorded
from harness.launch.render import render
from harness.launch.resolve import Machine
from harness.monitor.cores import usable_cores
from harness.run import (
    FINAL,
    Record,
    Run,
    Stage,
    State,
    claim_local_id,
    disk_error,
    release_local_id,
    runs_root,
    write_atomically,
)
from harness.site.site import Site, nvidia_gpus

RECORDED = (
    "submitit",
    "torch",
    "accelerate",
    "transformers",
    "deepspeed",
    "megatron-core",
    "numpy",
)


def this_machine() -> Machine:
    """What the machine we are on has."""
    wrapper = Path(sys.prefix) / "harness-python"  # beside the packages, wherever HARNESS_VENV put them
    return Machine(
        gpus=nvidia_gpus(),
        cores=usable_cores(),
        has_nsys=shutil.which("nsys") is not None,
        python=str(wrapper) if wrapper.is_file() else sys.executable,
        runs_dir=str(runs_root()),
    )


def prepare(experiment: Experiment, site: Site) -> Job:
    """The resolved job, for this machine. Raises RequestError."""
    return resolve(with_whole_paths(experiment), site, this_machine())


def script_of(job: Job) -> str:
    """The job's script, which bash can read. Raises RequestError."""
    text = render(job)
    check_script(job, text)
    return text


def submit(experiment: Experiment, site: Site, command: list[str]) -> Run:
    """Start the experiment at the site; returns its run, which then exists on disk.

    Raises:
        RequestError: something it names is not there; nothing was written.
        WorkError: the backend refused, or the disk did; nothing is left behind.
    """
    experiment = with_whole_paths(experiment)  # the record must mean the same from everywhere
    job = prepare(experiment, site)
    check(job, os.environ)
    files = {"job.sbatch": script_of(job), **job.files}
    with Stage(Path(job.output_dir)) as stage:
        for name, text in files.items():
            write_atomically(stage.path / name, text)
        start = _start_local if site.is_local else _start_slurm
        return start(stage, job, _record(experiment, site, job, command))


def _start_slurm(stage: Stage, job: Job, record: Record) -> Run:
    try:
        said = slurm.submit(stage.path / "job.sbatch", stage.output_dir, job.directives)
    except WorkError as refusal:
        raise WorkError(f"{refusal}{_asked_cpus(job, str(refusal))}") from None
    try:
        run = Run(stage.path)
        run.write_record(record.model_copy(update={"job_id": said.number, "cluster": said.cluster}))
        return stage.publish(job.name_for(said.number), said.number)
    except (OSError, WorkError) as error:
        slurm.cancel_job(said)
        why = error if isinstance(error, WorkError) else disk_error(stage.path, error)
        raise WorkError(f"job {said.number} was cancelled again: {why}") from None


def _asked_cpus(job: Job, refusal: str) -> str:
    """Where the number of CPUs comes from, when it may be what sbatch refused: no flag of ours names it."""
    if job.cpus_per_task is None or not re.search(r"\bCPU|node configuration", refusal):
        return ""
    field = "cpus_per_node" if job.site.cpus_per_node else "cpus_per_gpu"
    return f" (the job asks for {job.cpus_per_task} CPUs per node: {field} in the site file)"


def _start_local(stage: Stage, job: Job, record: Record) -> Run:
    job_id, folder = claim_local_id(runs_root())
    run = None
    try:
        Run(stage.path).write_record(record.model_copy(update={"job_id": job_id}))
        run = stage.publish(job.name_for(job_id), job_id)
        gpus = job.experiment.world_size if job.device == "cuda" else 0
        local.submit(run.script, job_id, folder, local.Limits(job.site.time_s, job.site.warning_s, gpus or 0))
    except (OSError, WorkError) as error:
        if run is not None:
            stage.withdraw(run)
        release_local_id(folder)
        raise error if isinstance(error, WorkError) else disk_error(stage.output_dir, error) from None
    return run


def state_of(run: Run, silent: set[str] | None = None) -> State:
    """The run's state, asked of whoever knows; `silent` as in `slurm.state`."""
    return slurm.state(run, silent) if run.record.backend == "slurm" else local.state(run)


def why(run: Run, state: State) -> str:
    """Why a run waits, ended without a word or left no report; empty when there is nothing to add to its state."""
    own = run.status()
    if state == "completed":
        return why_nothing_was_recorded(run.record, own.missing) if own else ""
    if run.record.backend == "local":
        return local.why_it_fell_silent(run) if state == "failed" else ""
    if state == "queued":
        return slurm.pending_reason(slurm.job_of(run))
    return slurm.why_it_never_began(slurm.job_of(run)) if state == "failed" and own is None else ""


def cancel(run: Run) -> State:
    """Stop a run that has not ended; returns the state it was in."""
    before = state_of(run)
    if before not in FINAL:
        (slurm.cancel if run.record.backend == "slurm" else local.cancel)(run)
    return before


def _record(experiment: Experiment, site: Site, job: Job, command: list[str]) -> Record:
    return Record(
        job_id="",
        backend="local" if site.is_local else "slurm",
        experiment=experiment,  # type: ignore[arg-type]  # an instance of one of the union's classes
        site=site,
        job=job.as_json(),
        command=command,
        git=_git_state(),
        versions=_versions(),
        user=_user(),
        submit_host=socket.gethostname(),
        created_ns=time.time_ns(),
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without an entry for us
        return str(os.getuid())


def _git_state() -> dict[str, str | bool | None]:
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit,
        "branch": _git("rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in RECORDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
