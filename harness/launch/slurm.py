"""The Slurm backend: submit, state, cancel, by the site's own commands. Knows runs, not experiments."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.errors import WorkError
from harness.launch.words import Word, quote_all
from harness.run import FINAL, Run, State

AFTER_TIME = "00:30:00"  # a conversion takes seconds per hundred thousand kernels
KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})
LEAKING = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "PMI_", "PMIX_")

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
    """Our environment without what an enclosing job left in it, which would steer the new one."""
    return {k: v for k, v in environ.items() if k in KEPT or not k.startswith(LEAKING)}


def submit(script: Path, workdir: Path, directives: list[str]) -> str:
    """Submit the script; returns the job's id.

    Its directives are said again on the command line, where SBATCH_ variables cannot overrule them: what the script
    says, and what was asked for, is what runs. Split and unquoted as sbatch itself reads them in the script.

    Raises:
        WorkError: sbatch refused; the sentence is sbatch's own.
    """
    words = [word for line in directives for word in shlex.split(line, comments=True)]
    return _job_id(_ask("sbatch", "--parsable", f"--chdir={workdir}", *words, str(script)))


def submit_after(run: Run, argv: list[Word], over: bool) -> str:
    """Submit a small CPU job of one command that begins when the run has ended (`over`: it has); returns its id.

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
        "output": str(run.log_dir / "after-%j.out").replace("%", "%%").replace("%%j", "%j"),
        "dependency": None if over else f"afterany:{run.job_id}",
        "kill-on-invalid-dep": None if over else "yes",
    }
    options = [f"--{name}={value}" for name, value in wanted.items() if value]
    return _job_id(_ask("sbatch", "--parsable", *options, f"--wrap={quote_all(argv)}"))


def _job_id(asked: subprocess.CompletedProcess[str] | None) -> str:
    if asked is None:
        raise WorkError("sbatch is not on PATH: log in to the cluster, or use --site local")
    if asked.returncode != 0:
        said = asked.stderr.strip() or asked.stdout.strip() or f"nothing (exit code {asked.returncode})"
        raise WorkError(f"sbatch refused the job: {said}")
    job_id = asked.stdout.strip().splitlines()[-1].split(";")[0] if asked.stdout.strip() else ""
    if not job_id.isdigit():
        raise WorkError(f"sbatch did not name a job id but said: {asked.stdout.strip() or 'nothing'}")
    return job_id


def state(run: Run) -> State:
    """What squeue says, then sacct, then scontrol, then the run itself; else unknown."""
    lagging: State = "unknown"
    for ask in (_squeue, _sacct, _scontrol):
        word = ask(run.job_id)
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


def _squeue(job_id: str) -> str | None:
    asked = _ask("squeue", "--noheader", "--format=%T", f"--jobs={job_id}")
    return _first_word_line(asked)


def _sacct(job_id: str) -> str | None:
    asked = _ask("sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={job_id}")
    return _first_word_line(asked)


def _scontrol(job_id: str) -> str | None:
    asked = _ask("scontrol", "--oneliner", "show", "job", job_id)
    if asked is None or asked.returncode != 0:
        return None
    fields = dict(part.split("=", 1) for part in asked.stdout.split() if "=" in part)
    return fields.get("JobState")


def pending_reason(job_id: str) -> str:
    """Why a queued job waits, in Slurm's words; empty when it does not say."""
    asked = _ask("squeue", "--noheader", "--format=%r", f"--jobs={job_id}")
    reason = _first_word_line(asked) or ""
    return "" if reason == "None" else reason  # not looked at yet


def cancel(run: Run) -> None:
    """Cancel the job.

    Raises:
        WorkError: scancel refused; the sentence is its own.
    """
    cancel_id(run.job_id)


def cancel_id(job_id: str) -> None:
    """As `cancel`, for a job that is no run yet."""
    asked = _ask("scancel", job_id)
    if asked is None or asked.returncode != 0:
        raise WorkError(f"scancel {job_id}: {asked.stderr.strip() if asked else 'is not on PATH'}")


def _first_word_line(asked: subprocess.CompletedProcess[str] | None) -> str | None:
    if asked is None or asked.returncode != 0 or not asked.stdout.strip():
        return None
    return asked.stdout.strip().splitlines()[0].strip()


def _ask(*argv: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, env=clean_environment(), timeout=120
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise WorkError(f"{argv[0]} did not answer within two minutes: is the controller down?") from None
