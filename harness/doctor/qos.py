"""The limits of the site's QOS, which a job may pass at submission only to wait for ever. Submits nothing."""

from __future__ import annotations

from collections.abc import Iterator

from harness.common.programs import Answer
from harness.doctor.result import Result, ok, problem
from harness.doctor.slurm_notation import gpus_of, seconds_of
from harness.doctor.surroundings import Surroundings
from harness.format.format import clock_text
from harness.launch.job import Job
from harness.site.slurm_commands import ask


def qos(around: Surroundings) -> Iterator[Result]:
    """The time and the GPUs that the QOS allows a job, if the cluster has accounting."""
    name, job = around.site.qos, around.job
    if name is None or job is None or around.which("sacctmgr") is None:
        return
    fields = "format=MaxWall,MaxTRES,MaxTRESPU"
    yield from qos_verdict(name, ask("sacctmgr", "-n", "-P", "show", "qos", name, fields), job)


def qos_verdict(name: str, answer: Answer, job: Job) -> Iterator[Result]:
    """Whether exercise 1 fits into the QOS. answer: `MaxWall|MaxTRES|MaxTRESPU`; none if there are no accounts."""
    line = (answer.out.strip().splitlines() or [""])[0]
    if answer.code or line.count("|") != 2:
        return  # whether there is such a QOS is sbatch's to say
    wall, *limits = line.split("|")
    limit_s, gpus = seconds_of(wall), [found for found in map(gpus_of, limits) if found is not None]
    asked = job.experiment.world_size or 0
    if limit_s is not None and job.site.time_s > limit_s:
        why = f"limits a job to {clock_text(limit_s)}, but the site asks for {job.site.time}: it would wait for ever"
        shorter = f"bash slurm.sh -e 1 --time {clock_text(limit_s)}   # or time: in the site file"
        yield problem(f"qos {name}", why, shorter)
    elif job.device == "cuda" and gpus and asked > min(gpus):
        why = f"limits you to {min(gpus)} GPUs at a time, but exercise 1 asks for {asked}: it would wait for ever"
        yield problem(f"qos {name}", why, f"bash slurm.sh -e 1 -g {min(gpus)}   # or -q another")
    else:
        most = clock_text(limit_s) if limit_s is not None else "without limit"
        yield ok(f"qos {name}", f"allows a job {most}" + f", {min(gpus)} GPUs for you at a time" * bool(gpus))
