"""The Slurm backend: submit, state, cancel, by the site's own commands. Knows runs, not experiments."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import WorkError
from harness.launch.argv import Word, quote_all
from harness.run import FINAL, Run, State

AFTER_TIME = "00:30:00"  # a conversion takes seconds per hundred thousand kernels
KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})
LEAKING = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "PMI_", "PMIX_")
# A submission that waits holds its nodes while the job looks for a run directory that only its return can make; an
# array would be many jobs of one run.
MISLEADING = frozenset({"SBATCH_WAIT", "SBATCH_ARRAY_INX"})
ORDER_S, QUESTION_S = 120, 20  # what must not be cut short has its time; a question has others to go to
# Site lines that say how much of the cluster a training takes: one process that converts needs none of it.
SIZES = re.compile(
    r"--(nodes|nodelist|nodefile|ntasks[\w-]*|tasks-per-node|gpus[\w-]*|gpu-\w+|gres-flags|gres(?=[= ].*gpu)|"
    r"tres-[\w-]+|mem[\w-]*|(cpus|cores|sockets|threads)-per-\w+|switches|exclusive|contiguous)(?=[= ]|$)"
)

# squeue, sacct and scontrol agree on these words. Any other (RESIZING, STAGE_OUT, …) is unknown: no end, so whoever
# waits goes on waiting.
STATES: dict[str, State] = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "queued",
    "SUSPENDED": "running",
    "RUNNING": "running",
    "COMPLETING": "running",
    "STOPPED": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "BOOT_FAIL": "failed",
    "DEADLINE": "timeout",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "cancelled",
    "TIMEOUT": "timeout",
    "NODE_FAIL": "node_fail",
}


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Our environment without what would steer the new job: an enclosing job's own, and other ways to submit."""
    ours = {k: v for k, v in environ.items() if k not in MISLEADING}
    return {k: v for k, v in ours.items() if k in KEPT or not k.startswith(LEAKING)}


class JobId(NamedTuple):
    """A job: its number, and the cluster that counts so where it is not the default one."""

    number: str
    cluster: str | None = None


def job_of(run: Run) -> JobId:
    """The run's job."""
    return JobId(run.job_id, run.record.cluster)


def submit(script: Path, workdir: Path, directives: list[str]) -> JobId:
    """Submit the script; returns its job.

    Its directives are said again on the command line, where SBATCH_ variables cannot overrule them: what the script
    says, and what was asked for, is what runs. Split and unquoted as sbatch itself reads them in the script; only the
    log's place is said in full, as a `%` in the name of a folder would be read as a pattern.

    Raises:
        WorkError: sbatch refused; the sentence is sbatch's own.
    """
    options = [f"--chdir={workdir}", *_words(directives), _output(workdir / "logs" / "slurm-%j.out")]
    return _job_id(_order("sbatch", "--parsable", *options, str(script)))


def _words(lines: list[str]) -> Iterator[str]:
    return (word for line in lines for word in shlex.split(line, comments=True))


def _output(path: Path) -> str:
    """The option for a log whose name holds the job's id as `%j`, in a folder of any name."""
    return f"--output={str(path.parent).replace('%', '%%')}/{path.name}"


def submit_after(run: Run, argv: list[Word], over: bool) -> JobId:
    """Submit a small CPU job of one command that begins when the run has ended (`over`: it has); returns it.

    Beside the queue it takes what the site says of every job, as a reservation or the nodes to keep away from.

    Raises:
        WorkError: sbatch refused; the sentence is sbatch's own.
    """
    site = run.record.site
    wanted = {
        "job-name": f"after-{run.job_id}",
        "nodes": "1",
        "ntasks": "1",
        "time": AFTER_TIME,
        "account": site.account,
        "partition": site.partition,
        "qos": site.qos,
        "chdir": str(run.log_dir),
        "dependency": None if over else f"afterany:{run.job_id}",
        "kill-on-invalid-dep": None if over else "yes",
        "clusters": run.record.cluster,  # the one that knows the job to wait for
    }
    options = [f"--{name}={value}" for name, value in wanted.items() if value]
    sites = _words([line for line in site.sbatch if not SIZES.match(line)])
    output = _output(run.log_dir / "after-%j.out")
    return _job_id(_order("sbatch", "--parsable", *sites, *options, output, f"--wrap={quote_all(argv)}"))


def _job_id(asked: subprocess.CompletedProcess[str] | None) -> JobId:
    if asked is None:
        raise WorkError("sbatch is not on PATH: log in to the cluster, or use --site local")
    if asked.returncode != 0:
        said = asked.stderr.strip() or asked.stdout.strip() or f"nothing (exit code {asked.returncode})"
        raise WorkError(f"sbatch refused the job: {said}")
    number, _, cluster = (asked.stdout.strip().splitlines() or [""])[-1].partition(";")
    if not number.isdigit():
        raise WorkError(f"sbatch did not name a job id but said: {asked.stdout.strip() or 'nothing'}")
    return JobId(number, cluster or None)


def state(run: Run, silent: set[str] | None = None) -> State:
    """What squeue says, then sacct, then scontrol, then the run itself; else unknown.

    `silent`: the programs that did not answer in time so far, which are not asked again; whoever lists many runs hands
    the same set to each.
    """
    lagging: State = "unknown"
    silent = set() if silent is None else silent
    for ask in (_squeue, _sacct, _scontrol):
        word = ask(job_of(run), silent)
        if word is None:
            continue
        said = STATES.get(word.split()[0].rstrip("+"), "unknown")
        if ask is _sacct and said not in FINAL:
            lagging = said  # for seconds after a job's end, accounting still says that it pends or runs
            continue
        return _refined(said, run)
    own = run.status()
    return own.state if own is not None and own.state != "running" else lagging


def _refined(state: State, run: Run) -> State:
    """The job's last word is more precise where it left before Slurm would have stopped it."""
    own = run.status()
    return (
        own.state
        if state in ("failed", "completed") and own and own.state in ("timeout", "cancelled")
        else state
    )


def _squeue(job: JobId, silent: set[str]) -> str | None:
    return _first_line(_question(silent, "squeue", "--noheader", "--format=%T", *_jobs(job)))


def _sacct(job: JobId, silent: set[str]) -> str | None:
    options = ("--noheader", "--parsable2", "--allocations", "--format=State")
    return _first_line(_question(silent, "sacct", *options, *_jobs(job)))


def _scontrol(job: JobId, silent: set[str]) -> str | None:
    return _shown(job, silent).get("JobState")


def _shown(job: JobId, silent: set[str]) -> dict[str, str]:
    """The fields that scontrol shows of the job; none where it does not know it (any more)."""
    asked = _question(silent, "scontrol", "--oneliner", *_clusters(job), "show", "job", job.number)
    if asked is None or asked.returncode != 0:
        return {}
    return dict(part.split("=", 1) for part in asked.stdout.split() if "=" in part)


def _jobs(job: JobId) -> list[str]:
    return [*_clusters(job), f"--jobs={job.number}"]


def _clusters(job: JobId) -> list[str]:
    return [f"--clusters={job.cluster}"] if job.cluster else []


def pending_reason(job: JobId) -> str:
    """Why a queued job waits, in Slurm's words; empty when it does not say."""
    reason = _first_line(_question(set(), "squeue", "--noheader", "--format=%r", *_jobs(job))) or ""
    return "" if reason == "None" else reason  # not looked at yet


def why_it_never_began(job: JobId) -> str:
    """Slurm's reason for a failed job of which nothing ran; empty when it gives none."""
    reason = _shown(job, set()).get("Reason", "None")
    return "" if reason == "None" else f"it never began: Slurm says {reason}"


def cancel(run: Run) -> None:
    """Cancel the job.

    Raises:
        WorkError: scancel refused; the sentence is its own.
    """
    cancel_job(job_of(run))


def cancel_job(job: JobId) -> None:
    """As `cancel`, for a job that is no run yet."""
    asked = _order("scancel", *_clusters(job), job.number)
    if asked is None or asked.returncode != 0:
        raise WorkError(f"scancel {job.number}: {asked.stderr.strip() if asked else 'is not on PATH'}")


def _first_line(asked: subprocess.CompletedProcess[str] | None) -> str | None:
    """The first line of an answer; a cluster that was named is repeated above it."""
    if asked is None or asked.returncode != 0:
        return None
    lines = (line.strip() for line in asked.stdout.splitlines())
    return next((line for line in lines if line and not line.startswith("CLUSTER:")), None)


def _question(silent: set[str], program: str, *words: str) -> subprocess.CompletedProcess[str] | None:
    """What the program answers; None, and it is among the silent from then on, when it does not in time."""
    if program in silent:
        return None
    try:
        return _run(QUESTION_S, program, *words)
    except subprocess.TimeoutExpired:
        silent.add(program)
        return None


def _order(*argv: str) -> subprocess.CompletedProcess[str] | None:
    """What became of an order; None when there is no such program.

    Raises:
        WorkError: nobody answered.
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
