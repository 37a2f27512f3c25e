"""The allocation backend: runs inside the Slurm allocation of the shell that launches them (`salloc`), without sbatch.

A run's script is that of a job, started here and kept as the local backend keeps its own; its steps are those of the
allocation. Its id is `JOB-NUMBER`, as of several runs in one allocation.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import RequestError, WorkError
from harness.common.system.slurm_notation import fields_of, unix_ns
from harness.experiment.exercises import Experiment
from harness.launch.backends import local, slurm, slurm_poll
from harness.launch.backends.protocol import Listed, PolledState, Submission
from harness.run import Run
from harness.run.find import claim_folder
from harness.site.site import Site
from harness.site.slurm_commands import LEAKING, JobId, scontrol

NAME = "allocation"
TEMPLATE, RUNS_HERE, HELD, POLL_S = slurm.TEMPLATE, False, True, local.POLL_S
directives, warnings, refusals = slurm.directives, slurm.warnings, slurm.refusals
submit_together, submit_after, most_together = local.submit_together, local.submit_after, local.most_together
logs = local.logs
# What a step needs to find its allocation. Others are those of the shell's own step, as its number of tasks.
_KEPT = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME")
_GPUS = re.compile(r"gres[:/]gpu(?::[^:=,]+)?[:=](\d+)")
_MINUTE_NS = 60 * 1_000_000_000


class Allocation(NamedTuple):
    """What Slurm has given to the shell. gpus: per node; None: Slurm does not say. ends_ns: unix time; None: never."""

    job: str
    nodes: int
    cpus: int
    gpus: int | None
    nodelist: str
    ends_ns: int | None

    @property
    def text(self) -> str:
        """Its size, for people."""
        gpus = "" if self.gpus is None else f", {self.gpus} GPU{'s' * (self.gpus != 1)} each"
        return f"allocation {self.job} ({self.nodes} node{'s' * (self.nodes != 1)}{gpus})"


@cache
def allocation_of(job_id: str) -> Allocation | None:
    """The allocation with this number; None: Slurm does not know it, or it does not run."""
    found = fields_of(scontrol(JobId(job_id)).text)
    if found.get("JobState") != "RUNNING" or not found.get("NumNodes", "").isdigit():
        return None
    nodes = int(found["NumNodes"])
    total = _GPUS.search(found.get("AllocTRES", found.get("TRES", "")))
    each = _GPUS.search(found.get("TresPerNode", ""))
    return Allocation(
        job=job_id,
        nodes=nodes,
        cpus=int(found.get("NumCPUs", nodes)) // nodes,
        gpus=int(total[1]) // nodes if total else int(each[1]) if each else None,
        nodelist=found["NodeList"],
        ends_ns=unix_ns(found.get("EndTime", "")),
    )


def misfit(experiment: Experiment, site: Site, allocation: Allocation) -> str:
    """Why a run does not fit into the allocation, as the end of a sentence; empty if it does."""
    if experiment.nodes > allocation.nodes:
        return f"it has {allocation.nodes} node{'s' * (allocation.nodes != 1)}, and -n asks for {experiment.nodes}"
    if site.device != "cuda" or site.gpus.request == "none":
        return ""
    has, asked = allocation.gpus or 0, experiment.gpus_per_node or 1
    return f"it has {has} GPUs per node, and the run asks for {asked}" if asked > has else ""


def placed(experiment: Experiment, site: Site, environ: Mapping[str, str]) -> tuple[Site, str]:
    """The site as a launch from this shell uses it: inside the shell's allocation, if it has one in which the run fits,
    and where it runs, as a sentence. Raises RequestError: `--allocation use`, and the run does not fit, or the shell
    has none."""
    job = environ.get("SLURM_JOB_ID", "")
    if site.scheduler != "slurm" or site.allocation == "submit" or not (job or site.allocation == "use"):
        return site, ""
    found = allocation_of(job) if job else None
    if found is None:
        if site.allocation == "use":
            why = f"Slurm knows no running job {job}" if job else "this shell has none (salloc makes one)"
            raise RequestError(f"--allocation use: {why}: leave it out to submit a job of its own")
        return site, ""
    why = misfit(experiment, site, found)
    if why and site.allocation == "use":
        raise RequestError(f"--allocation use: allocation {job} is too small, because {why}")
    if why:
        return site, f"not in allocation {job} of this shell, because {why}: a job of its own is submitted"
    size = {"per_node": found.gpus} if found.gpus and experiment.gpus_per_node is None else {}
    inside = {"scheduler": NAME, "gpus": site.gpus.model_copy(update=size), "cpus_per_node": found.cpus}
    return site.model_copy(update=inside), f"in {found.text}, without sbatch"


def submit(submission: Submission) -> Run:
    """Number the staged run and start it inside the allocation; returns it. Raises WorkError: the allocation has ended,
    or the run could not be written or started; nothing is left behind."""
    number = os.environ.get("SLURM_JOB_ID", "")
    found = allocation_of(number)
    if found is None:
        raise WorkError(f"allocation {number} has ended: salloc makes another one, or submit with --allocation submit")
    start_inside = partial(start, site=submission.record.site, allocation=found)
    return local.start_staged(submission, *claim_folder(submission.stage.output_dir.parent, number), start_inside)


def start(script: Path, job_id: str, folder: Path, site: Site, allocation: Allocation) -> None:
    """Start the script in the background, warned before its own time limit or the allocation's. Raises OSError: the
    folder cannot be written."""
    left_s = (
        site.time_s
        if allocation.ends_ns is None
        else (allocation.ends_ns - time.time_ns() - _MINUTE_NS) // 1_000_000_000
    )
    outer = {name: None for name in os.environ if name.startswith(LEAKING) and name not in _KEPT}
    environment: dict[str, str | None] = {
        **outer,
        "SLURM_JOB_ID": allocation.job,
        "SLURM_JOB_NODELIST": allocation.nodelist,
    }
    environment["HARNESS_JOB_ID"] = job_id
    time_s = max(60, min(site.time_s, left_s))
    local.keep([str(script)], environment, folder, time_s=time_s, warning_s=site.warning_s)


def poll(run: Run) -> PolledState:
    """By its own process on the machine that started it; elsewhere by its own words and its allocation's state."""
    return local.poll(run) if run.record.submit_host == socket.gethostname() else slurm_poll.poll(run)


def listed(runs: Sequence[Run]) -> dict[Path, Listed] | None:
    """Each run's own files and process say its state: nothing waits in a queue."""
    return {run.path: Listed(poll(run)) for run in runs}


def cancel(run: Run) -> list[Run]:
    """Ask the run to stop; its allocation stays. Raises WorkError: its process is not on this machine."""
    try:
        return local.cancel(run)
    except WorkError as error:
        job = slurm_poll.job_of(run).number
        raise WorkError(f"{error}; scancel {job} would end its whole allocation") from None
