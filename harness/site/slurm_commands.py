"""The only client of Slurm's commands. Each has a time limit and a clean environment. Knows no run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from harness.common.errors import WorkError
from harness.common.programs import Answer
from harness.common.programs import ask as ask_program

KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})
LEAKING = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "PMI_", "PMIX_")
# A submission that waits would block the launcher while the job waits for its run directory, which the launcher makes
# after the submission. An array would be many jobs of one run.
MISLEADING = frozenset({"SBATCH_WAIT", "SBATCH_ARRAY_INX"})
ORDER_S, QUESTION_S, PING_S = 120, 20, 5  # an order must not be cut short; another program answers a question


class JobId(NamedTuple):
    """A job: its number, and the cluster that gave it where that is not the default one."""

    number: str
    cluster: str | None = None

    @property
    def options(self) -> list[str]:
        """The options that select this job for squeue and sacct."""
        return [*self.on_cluster, f"--jobs={self.number}"]

    @property
    def on_cluster(self) -> list[str]:
        return [f"--clusters={self.cluster}"] if self.cluster else []


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Our environment without the variables that would change the new job, as an enclosing job's."""
    ours = {k: v for k, v in environ.items() if k not in MISLEADING}
    return {k: v for k, v in ours.items() if k in KEPT or not k.startswith(LEAKING)}


def sbatch(*words: str) -> JobId:
    """Submit with these options and script; returns the job.

    Raises:
        WorkError: sbatch refused; the sentence is sbatch's own.
    """
    asked = _order("sbatch", "--parsable", *words)
    if asked is None:
        raise WorkError("sbatch is not on PATH: log in to the cluster, or use --site local")
    if asked.returncode != 0:
        said = asked.stderr.strip() or asked.stdout.strip() or f"nothing (exit code {asked.returncode})"
        raise WorkError(f"sbatch refused the job: {said}")
    number, _, cluster = (asked.stdout.strip().splitlines() or [""])[-1].partition(";")
    if not number.isdigit():
        raise WorkError(f"sbatch printed no job id but: {asked.stdout.strip() or 'nothing'}")
    return JobId(number, cluster or None)


def scancel(job: JobId) -> None:
    """Cancel the job.

    Raises:
        WorkError: scancel refused; the sentence is its own.
    """
    asked = _order("scancel", *job.on_cluster, job.number)
    if asked is None or asked.returncode != 0:
        raise WorkError(f"scancel {job.number}: {asked.stderr.strip() if asked else 'is not on PATH'}")


def squeue(job: JobId, field: str, silent: set[str]) -> str | None:
    """One field of a queued or running job, as `%T`; None where squeue does not know the job.

    silent: the programs that did not answer in time so far. They are not asked again.
    """
    return _first_line(_question(silent, "squeue", "--noheader", f"--format={field}", *job.options))


def sacct(job: JobId, silent: set[str]) -> str | None:
    """The job's state in the accounts; None where the accounts do not know it. `silent` as in `squeue`."""
    options = ("--noheader", "--parsable2", "--allocations", "--format=State")
    return _first_line(_question(silent, "sacct", *options, *job.options))


def scontrol(job: JobId, silent: set[str]) -> dict[str, str]:
    """The fields that scontrol shows of the job; empty where it does not know it. `silent` as in `squeue`."""
    asked = _question(silent, "scontrol", "--oneliner", *job.on_cluster, "show", "job", job.number)
    if asked is None or asked.returncode != 0:
        return {}
    return dict(part.split("=", 1) for part in asked.stdout.split() if "=" in part)


def max_array_size() -> int:
    """The most tasks of one array that the controller accepts; 0 where it does not say, or allows none."""
    asked = _question(set(), "scontrol", "show", "config")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", asked.stdout, re.MULTILINE) if asked else None
    return int(found[1]) if found else 0


def in_queue(job: JobId) -> bool:
    """Whether Slurm still lists the job; also True where squeue fails, unless it does not know the id."""
    asked = _question(set(), "squeue", "--noheader", "--format=%T", *job.options)
    if asked is None or asked.returncode:
        return asked is None or "Invalid job id" not in asked.stderr
    return _first_line(asked) is not None


def ask(*argv: str, limit_s: float = QUESTION_S) -> Answer:
    """One of Slurm's commands as typed, for who reads its words; its status says also that it is not there."""
    return ask_program(argv, limit_s, clean_environment())


def controller_answers() -> bool:
    """Whether jobs can be submitted from here now."""
    if not (shutil.which("sbatch") and shutil.which("scontrol")):
        return False
    try:
        asked = _run(PING_S, "scontrol", "ping")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked is not None and asked.returncode == 0 and "UP" in asked.stdout


def _first_line(asked: subprocess.CompletedProcess[str] | None) -> str | None:
    """The first line of an answer. With --clusters, the cluster's name stands above it."""
    if asked is None or asked.returncode != 0:
        return None
    lines = (line.strip() for line in asked.stdout.splitlines())
    return next((line for line in lines if line and not line.startswith("CLUSTER:")), None)


def _question(silent: set[str], program: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """The program's answer; None where it did not answer in time, which adds it to `silent`."""
    if program in silent:
        return None
    try:
        return _run(QUESTION_S, program, *words)
    except subprocess.TimeoutExpired:
        silent.add(program)
        return None


def _order(*argv: str) -> subprocess.CompletedProcess[str] | None:
    """The answer to an order; None when there is no such program.

    Raises:
        WorkError: the program did not answer in time.
    """
    try:
        return _run(ORDER_S, *argv)
    except subprocess.TimeoutExpired:
        raise WorkError(f"{argv[0]} did not answer within two minutes: is the controller down?") from None


def _run(limit_s: float, *argv: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, env=clean_environment(), timeout=limit_s
        )
    except FileNotFoundError:
        return None
