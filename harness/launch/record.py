"""The record of a launch: what was asked, and which program, versions and revision run it on which machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import time
from contextlib import suppress
from pathlib import Path

from harness.common.paths import DISTRIBUTION
from harness.common.system.programs import git_state, git_state_of
from harness.common.system.training_python import ask_python
from harness.common.system.users import this_user
from harness.experiment.exercises import Experiment, OwnTraining
from harness.launch.argv import shown
from harness.launch.backends.allocation import NAME as ALLOCATION
from harness.launch.before.from_shell import sbatch_variables, shell_limits, shell_variables
from harness.launch.job import Job
from harness.run.record import Program, RunRecord, SeriesPart

RECORDED = (DISTRIBUTION, "submitit", "torch", "accelerate", "transformers", "deepspeed", "megatron-core", "numpy")


def _program(experiment: Experiment, job: Job) -> Program | None:
    """The program of a training of the user's own; None: it is an exercise."""
    if not isinstance(experiment, OwnTraining):
        return None
    script = Path(experiment.start_in, experiment.program)
    is_file = experiment.form == "script" or "/" in experiment.program
    return Program(
        script=str(script) if is_file else experiment.program,
        arguments=list(experiment.arguments),
        python=shown(job.training_python),
        git=git_state_of(script.parent if is_file and script.parent.is_dir() else Path(experiment.start_in)),
    )


def _versions(experiment: Experiment) -> dict[str, str]:
    """The versions of what trains, by package; empty where nobody here can ask for them, as in a container."""
    if isinstance(experiment, OwnTraining) and experiment.python is not None:
        told = ask_python(experiment.python)
        return {} if isinstance(told, str) else told.versions
    found = {"python": platform.python_version()}
    for name in RECORDED:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def record_of(experiment: Experiment, job: Job, command: list[str], part: SeriesPart | None) -> RunRecord:
    """The record of a launch of this job. command: as typed. part: of which series of runs it is one."""
    return RunRecord(
        job_id="",
        backend=job.site.scheduler,
        experiment=experiment,  # type: ignore[arg-type]  # an instance of one of the union's classes
        # The shell's allocation is no place for another launch of this record.
        site=job.site.model_copy(update={"scheduler": "slurm"} if job.site.scheduler == ALLOCATION else {}),
        job=job.as_json(),
        command=command,
        git=git_state(),
        versions=_versions(experiment),
        program=_program(experiment, job),
        user=this_user(),
        submit_host=socket.gethostname(),
        created_ns=time.time_ns(),
        part=part,
        inherited=shell_variables(os.environ, job),
        limits=shell_limits(job),
        for_sbatch=sbatch_variables(os.environ, job),
    )
