"""The Slurm backend: submit, state, cancel, by the site's own commands. Knows runs, not how they are resolved. A run's
id is its job's; of an array `JOB_TASK`, as Slurm writes it; of several runs in one allocation `JOB-NUMBER`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.common.errors import WorkError
from harness.common.paths import TEMPLATES
from harness.common.run_folder.run_files import GROUP_SCRIPT, RECORD
from harness.common.system.slurm_notation import clock_text, fields_of, words_of
from harness.experiment.exercises import Experiment
from harness.launch.argv import Word, quote_all
from harness.launch.backends import slurm_poll
from harness.launch.backends.protocol import Render, Submission, Together
from harness.launch.backends.slurm_poll import job_of, shares_allocation
from harness.run import SUBMITTED, Run, Stage, disk_error, write_atomically
from harness.run.record import FINAL
from harness.site.site import Site
from harness.site.slurm_commands import JobId, in_queue, number_in_config, sbatch, scancel, scontrol

BETWEEN_S = 30  # of an allocation's limit, for what lies between two of its runs
MOST_IN_SERIES = 1000
TEMPLATE = TEMPLATES / "slurm.j2"
POLL_S = 2.0  # a controller serves hundreds of students
AFTER_TIME = "00:30:00"  # a conversion takes seconds per hundred thousand kernels
# Site lines with the size of a training, which a process that only converts does not need.
SIZES = re.compile(
    r"--(nodes|nodelist|nodefile|ntasks[\w-]*|tasks-per-node|gpus[\w-]*|gpu-\w+|gres-flags|gres(?=[= ].*gpu)|"
    r"tres-[\w-]+|mem[\w-]*|(cpus|cores|sockets|threads)-per-\w+|switches|exclusive|contiguous)(?=[= ]|$)"
)

# What sbatch reads after its command line.
SBATCH_VARIABLES = {
    "account": "SBATCH_ACCOUNT",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "time": "SBATCH_TIMELIMIT",
}


def options_of(workdir: Path, lines: list[str], log: str = "slurm-%j.out") -> list[str]:
    """The script's directives again, for the command line, where SBATCH_ variables cannot overrule them.

    Split and unquoted as sbatch reads them in the script. Only the log's path is absolute, as sbatch would read a `%`
    in a folder's name as a pattern.
    """
    return [f"--chdir={workdir}", *words_of(lines), log_option(workdir / "logs" / log)]


def log_option(path: Path) -> str:
    """The option for a log whose name holds the job's id as `%j`, in a folder of any name."""
    return f"--output={str(path.parent).replace('%', '%%')}/{path.name}"


def submit_together(submissions: Sequence[Submission], way: Together, at_once: int | None, render: Render) -> list[Run]:
    """Submit staged runs as an array of tasks, or as an allocation for the sum of their time limits; returns them.
    Raises WorkError: sbatch refused; or a run could not be written, and the job was cancelled again."""
    stage, site = submissions[0].stage, submissions[0].record.site
    lines = [line for line in submissions[0].directives if not line.startswith(("--output=", "--time="))]
    nodes = dict.fromkeys(each.record.site.nodelist for each in submissions)
    if len(nodes) > 1:  # each run has its own nodes of one allocation
        names = ",".join(filter(None, nodes))
        lines = [line for line in lines if not line.startswith(("--nodes=", "--nodelist="))]
        lines += [f"--nodes={len(set(names.split(',')))}", f"--nodelist={names}"]
    if way == "array":
        most = f"%{at_once}" if at_once else ""
        lines += [f"--time={site.time}", f"--array=0-{len(submissions) - 1}{most}"]
        log, between = "slurm-%A_%a.out", "_"
    else:
        minutes = -(-len(submissions) * (site.time_s + BETWEEN_S) // 60)
        lines.append(f"--time={clock_text(minutes * 60)}")
        log, between = "slurm-%j.out", "-"
    lines.append(f"--output=logs/{log}")
    script = GROUP_SCRIPT.path(stage.path, way)
    write_atomically(script, render(TEMPLATES / f"slurm_{way}.j2", lines))
    job = sbatch(*options_of(stage.output_dir, lines, log), str(script))
    return _published(job, {f"{job.number}{between}{i}": each for i, each in enumerate(submissions)}, stage.output_dir)


def _published(job: JobId, submissions: Mapping[str, Submission], folder: Path) -> list[Run]:
    """The staged runs of a job, by their ids, published. folder: for the sentence on a write that failed. Raises
    WorkError: one could not be written, and the job was cancelled again."""
    made: list[tuple[Stage, Run]] = []
    try:
        for job_id, each in submissions.items():
            record = each.record.model_copy(update={"job_id": job_id, "cluster": job.cluster})
            Run(each.stage.path).write_record(record)
            made.append((each.stage, each.stage.publish(each.name_for(job_id), job_id)))
    except (OSError, WorkError) as error:
        scancel(job)
        for stage, run in made:
            stage.withdraw(run)
        why = error if isinstance(error, WorkError) else disk_error(folder, error)
        raise WorkError(f"job {job.number} was cancelled again: {why}") from None
    return [run for _, run in made]


def most_together(way: Together) -> int:
    """Slurm's own limit of an array's size; an allocation has none."""
    return (number_in_config("MaxArraySize") or 0) if way == "array" else MOST_IN_SERIES


RUNS_HERE = HELD = False

poll, listed = slurm_poll.poll, slurm_poll.listed


def directives(experiment: Experiment, site: Site, cpus: int | None) -> list[str]:
    gpus = f"{site.gpus.type}:{experiment.gpus_per_node}" if site.gpus.type else str(experiment.gpus_per_node)
    request = {
        "gres": f"--gres=gpu:{gpus}",
        "gpus-per-node": f"--gpus-per-node={gpus}",
        "gpus-per-task": f"--gpus-per-task={gpus}",
        "none": None,
    }[site.gpus.request]
    found = [
        f"--job-name={experiment.job_name}",
        f"--nodes={experiment.nodes}",
        "--ntasks-per-node=1",
        request,
        f"--cpus-per-task={cpus}" if cpus else None,
        f"--mem={site.memory}" if site.memory else None,
        "--exclusive" if site.exclusive else None,
        f"--nodelist={site.nodelist}" if site.nodelist else None,
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


def warnings(experiment: Experiment, site: Site, environ: Mapping[str, str]) -> list[str]:
    """Variables of sbatch that the directives overrule, a missing account, and a job larger than its queue."""
    found = [
        f"{variable}={environ[variable]} is not used: the job asks for {getattr(site, name)}, and a flag changes that"
        for name, variable in SBATCH_VARIABLES.items()
        if environ.get(variable) and getattr(site, name) not in (None, environ[variable])
    ]
    if site.needs_account and site.scheduler == "slurm" and not (site.account or environ.get("SBATCH_ACCOUNT")):
        found.append(f"site {site.name} needs an account for each job, and none is named: add -a ACCOUNT")
    if site.max_nodes is not None and experiment.nodes > site.max_nodes:
        queue = site.qos or site.partition or site.name
        found.append(
            f"-n {experiment.nodes} is more nodes than {queue} allows ({site.max_nodes}): "
            "the job may wait for ever; choose another queue with -q or -p"
        )
    return found


def refusals(output_dir: str) -> list[str]:
    why = "Slurm writes no log to a path with a backslash in it: choose another with HARNESS_RUNS"
    return [f"{output_dir}: {why}"] if "\\" in output_dir else []


def submit(submission: Submission) -> Run:
    """Submit the staged script; returns its run. Raises WorkError: sbatch refused; or the run could not be written, and
    its job was cancelled again."""
    stage = submission.stage
    job = sbatch(*options_of(stage.output_dir, submission.directives), str(Run(stage.path).script), SUBMITTED)
    return _published(job, {job.number: submission}, stage.path)[0]


def submit_after(run: Run, argv: list[Word], over: bool) -> str:
    """Submit a small CPU job of one command that begins when the run has ended; returns its id. over: it has ended.

    It goes to the same queue, with the site's options that hold for every job, as a reservation.

    Raises WorkError: sbatch refused, with its own sentence.
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


def cancel(run: Run) -> list[Run]:
    """Cancel the job; returns the other runs of its allocation, which end with it. Raises WorkError: Slurm does not
    know the job, refused, or does not answer."""
    job = job_of(run)
    if not in_queue(job) and "JobState" not in fields_of(scontrol(job).text):  # scancel would say nothing
        raise WorkError(f"Slurm does not know job {job.number} (any more): nothing was cancelled")
    scancel(job)
    others = _beside(run) if shares_allocation(run) else []
    for each in (run, *others):
        if each.status() is None:  # a controller without accounts forgets a task that never began at once
            each.write_down("cancelled", told_by="CANCELLED")
    return others


def _beside(run: Run) -> list[Run]:
    """The other runs of the allocation that have not ended."""
    same = (Run(file.parent) for file in run.path.parent.glob(f"[!.]*/{RECORD.name}") if file.parent != run.path)
    known = (each for each in same if each.known_record and shares_allocation(each) and job_of(each) == job_of(run))
    return [each for each in known if (own := each.status()) is None or own.state not in FINAL]


def logs(run: Run) -> list[Path]:
    """The file for what Slurm itself prints: a cancellation, a time limit."""
    return [run.scheduler_log.with_name(f"slurm-{job_of(run).number}.out")]
