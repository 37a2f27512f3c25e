"""The Slurm backend: submit, state, cancel, by the site's own commands. Knows runs, not how they are resolved.

A run's id is its job's; of an array `JOB_TASK`, as Slurm writes it; of several runs in one allocation `JOB-NUMBER`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from harness.common.errors import WorkError
from harness.common.paths import TEMPLATES
from harness.common.programs import Answer
from harness.experiment.exercises import Experiment
from harness.launch.argv import Word, quote_all
from harness.launch.backends import slurm_together
from harness.launch.backends.protocol import Submission
from harness.launch.backends.slurm_options import log_option, options_of, words_of
from harness.run import FINAL, Run, State, Status, disk_error
from harness.site.site import Site
from harness.site.slurm_commands import JobId, ask, sacct, sbatch, scancel, scontrol, squeue

TEMPLATE = TEMPLATES / "slurm.j2"
RUNS_HERE = False
POLL_S = 2.0  # a controller serves hundreds of students

joint, submit_together = slurm_together.joint, slurm_together.submit_together
most_together = slurm_together.most_together

AFTER_TIME = "00:30:00"  # a conversion takes seconds per hundred thousand kernels
# Site lines with the size of a training, which a process that only converts does not need.
SIZES = re.compile(
    r"--(nodes|nodelist|nodefile|ntasks[\w-]*|tasks-per-node|gpus[\w-]*|gpu-\w+|gres-flags|gres(?=[= ].*gpu)|"
    r"tres-[\w-]+|mem[\w-]*|(cpus|cores|sockets|threads)-per-\w+|switches|exclusive|contiguous)(?=[= ]|$)"
)

# The words of squeue, sacct and scontrol. Any other (RESIZING, STAGE_OUT, …) is unknown, which is not an end: a caller
# that waits goes on waiting.
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

# What sbatch reads after its command line.
SBATCH_VARIABLES = {
    "account": "SBATCH_ACCOUNT",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "time": "SBATCH_TIMELIMIT",
}


def directives(asked: Experiment, site: Site, cpus: int | None) -> list[str]:
    """The `#SBATCH` options."""
    gpus = f"{site.gpus.type}:{asked.gpus_per_node}" if site.gpus.type else str(asked.gpus_per_node)
    request = {
        "gres": f"--gres=gpu:{gpus}",
        "gpus-per-node": f"--gpus-per-node={gpus}",
        "gpus-per-task": f"--gpus-per-task={gpus}",
        "none": None,
    }[site.gpus.request]
    found = [
        f"--job-name=e{asked.exercise}-{asked.folder.split('_', 2)[2]}",
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        request,
        f"--cpus-per-task={cpus}" if cpus else None,
        f"--mem={site.memory}" if site.memory else None,
        "--exclusive" if site.exclusive else None,
        f"--partition={site.partition}" if site.partition else None,
        f"--qos={site.qos}" if site.qos else None,
        f"--account={site.account}" if site.account else None,
        f"--time={site.time}",
        f"--signal=B:USR1@{site.warning_s}" if site.warning_s else None,
        "--output=logs/slurm-%j.out",
        "--no-requeue",
        *site.sbatch,
    ]
    return [d for d in found if d]


def warnings(asked: Experiment, site: Site, environ: Mapping[str, str]) -> list[str]:
    """Variables of sbatch that the directives overrule, and a job larger than its queue."""
    found = [
        f"{variable}={environ[variable]} is not used: the job asks for {getattr(site, name)}, which a flag changes"
        for name, variable in SBATCH_VARIABLES.items()
        if environ.get(variable) and getattr(site, name) not in (None, environ[variable])
    ]
    if site.max_nodes is not None and asked.nodes > site.max_nodes:
        queue = site.qos or site.partition or site.name
        found.append(
            f"-n {asked.nodes} is more nodes than {queue} lets run ({site.max_nodes}): "
            "the job may wait for ever; choose another queue with -q or -p"
        )
    return found


def refusals(output_dir: str) -> list[str]:
    """Why Slurm would write no log in this folder."""
    why = "Slurm writes no log to a path with a backslash in it: choose another with HARNESS_RUNS"
    return [f"{output_dir}: {why}"] if "\\" in output_dir else []


def submit(asked: Submission) -> Run:
    """Submit the staged script; returns its run.

    Raises:
        WorkError: sbatch refused; or the run could not be written, and its job was cancelled again.
    """
    stage = asked.stage
    try:
        job = sbatch(*options_of(stage.output_dir, asked.directives), str(Run(stage.path).script))
    except WorkError as refusal:
        raise WorkError(f"{refusal}{_asked_cpus(asked, str(refusal))}") from None
    try:
        Run(stage.path).write_record(
            asked.record.model_copy(update={"job_id": job.number, "cluster": job.cluster})
        )
        return stage.publish(asked.name_for(job.number), job.number)
    except (OSError, WorkError) as error:
        scancel(job)
        why = error if isinstance(error, WorkError) else disk_error(stage.path, error)
        raise WorkError(f"job {job.number} was cancelled again: {why}") from None


def submit_script(workdir: Path, lines: list[str], script: Path) -> JobId:
    """Submit a script that is no run's, with a run's directives. `workdir`/logs must be there.

    Raises:
        WorkError: sbatch refused, with its own sentence.
    """
    return sbatch(*options_of(workdir, lines), str(script))


def trial(workdir: Path, lines: list[str]) -> Answer:
    """What `sbatch --test-only` says of a job with these directives: it is judged, and nothing is submitted."""
    return ask("sbatch", "--test-only", *options_of(workdir, lines), "--wrap=true")


def _asked_cpus(asked: Submission, refusal: str) -> str:
    """Where the number of CPUs comes from, when sbatch may have refused it: no flag sets it."""
    if asked.cpus_per_task is None or not re.search(r"\bCPU|node configuration", refusal):
        return ""
    field = "cpus_per_node" if asked.record.site.cpus_per_node else "cpus_per_gpu"
    return f" (the job asks for {asked.cpus_per_task} CPUs per node: {field} in the site file)"


def submit_after(run: Run, argv: list[Word], over: bool) -> str:
    """Submit a small CPU job of one command that begins when the run has ended; returns its id. over: it has ended.

    It goes to the same queue, with the site's options that hold for every job, as a reservation.

    Raises:
        WorkError: sbatch refused, with its own sentence.
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
        "dependency": None if over else f"afterany:{job_of(run).number}",
        "kill-on-invalid-dep": None if over else "yes",
        "clusters": run.record.cluster,  # the one that knows the job to wait for
    }
    options = [f"--{name}={value}" for name, value in wanted.items() if value]
    sites = words_of([line for line in site.sbatch if not SIZES.match(line)])
    output = log_option(run.log_after("%j"))
    return sbatch(*sites, *options, output, f"--wrap={quote_all(argv)}").number


def state(run: Run, silent: set[str] | None = None) -> State:
    """The state from squeue, else from sacct, scontrol or the run itself; else unknown.

    silent: the programs that did not answer in time so far, which are not asked again. A caller that lists many runs
    gives the same set for each.
    """
    found = _state_of_job(run, set() if silent is None else silent)
    return _in_allocation(run, found) if _shares_allocation(run) else found


def _shares_allocation(run: Run) -> bool:
    return "-" in run.job_id


def _in_allocation(run: Run, allocation: State) -> State:
    """The state of one of several runs in an allocation: its own word, else what the allocation's state leaves it."""
    own = run.status()
    if own is not None and own.state in FINAL:
        return own.state
    if allocation == "running":
        return "running" if own is not None else "queued"
    return "failed" if allocation == "completed" else allocation  # the allocation ended, and the run had not


def _state_of_job(run: Run, silent: set[str]) -> State:
    job = job_of(run)
    if (word := squeue(job, "%T", silent)) is not None:
        return _refined(_state_named(word), run)
    accounted = _state_named(sacct(job, silent))
    if accounted in FINAL:
        return _refined(accounted, run)
    if (word := scontrol(job, silent).get("JobState")) is not None:
        return _refined(_state_named(word), run)
    own = run.status()
    # For seconds after a job's end, the accounts still have it as pending or running.
    return own.state if own is not None and own.state != "running" else accounted


def _state_named(word: str | None) -> State:
    return "unknown" if word is None else STATES.get(word.split()[0].rstrip("+"), "unknown")


def _refined(state: State, run: Run) -> State:
    """The state, or the job's own, which is more precise where the job ended before Slurm stopped it."""
    own = run.status()
    is_refined = state in ("failed", "completed") and own and own.state in ("timeout", "cancelled")
    return own.state if own and is_refined else state


def why(run: Run, state: State) -> str:
    """Slurm's reason why a queued job waits, or why a failed job did not begin; empty without a reason."""
    job = job_of(run)
    if state == "queued":
        if _shares_allocation(run) and _state_of_job(run, set()) == "running":
            return "runs before it in the same allocation have not ended"
        reason = squeue(job, "%r", set())
        return "" if reason in (None, "None") else str(reason)  # "None": Slurm has not looked at it yet
    if state == "failed" and run.status() is None:
        reason = scontrol(job, set()).get("Reason", "None")
        return "" if reason == "None" else f"it never began: Slurm says {reason}"
    return ""


def cancel(run: Run) -> None:
    """Cancel the job; of several runs in one allocation, all that have not ended.

    Raises:
        WorkError: scancel refused, with its own sentence.
    """
    scancel(job_of(run))
    if run.status() is None:  # a controller without accounts forgets a task that never began at once
        run.write_status(Status(state="cancelled", ended_ns=time.time_ns()))


def job_of(run: Run) -> JobId:
    """The run's job, which several runs may share."""
    return JobId(run.job_id.partition("-")[0], run.record.cluster)


def logs(run: Run) -> list[Path]:
    """The file for what Slurm itself prints: a cancellation, a time limit."""
    return [run.scheduler_log.with_name(f"slurm-{job_of(run).number}.out")]
