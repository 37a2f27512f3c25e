"""Slurm as a student meets it: a real request, judged by sbatch, and what it does not judge: the limits of a QOS.
Submits nothing."""

from __future__ import annotations

import re
from pathlib import Path

from harness.common.paths import COMMAND
from harness.common.system.programs import ProgramOutput
from harness.common.system.slurm_notation import clock_text, seconds_of
from harness.doctor.surroundings import CheckResult, Surroundings, ok, problem, unseen
from harness.launch.backends.slurm import options_of
from harness.site.slurm_commands import ask

MINE = "sacctmgr show associations user=$USER format=account,partition,qos"
# What sbatch says when it refuses, and what to do.
REFUSED = (
    (r"[Ii]nvalid account", f"{MINE}   # then -a NAME, or account: in the site file"),
    (r"[Ii]nvalid qos", f"{MINE}   # then -q NAME, or qos: in the site file"),
    (r"[Ii]nvalid partition|[Nn]o partition", "sinfo --summarize   # then -p NAME, or partition: in the site file"),
    (r"not permitted to use this partition", f"{MINE}   # then -p NAME of one that you may use"),
    (r"time limit", "sinfo -o '%P %l'   # then --time HH:MM:SS, or time: in the site file"),
    (r"reservation", "scontrol show reservation   # then --reservation= in sbatch: of the site file"),
    (r"gres|generic resource", "sinfo -o '%P %G'   # then gpus: in the site file"),
    (r"CPU count|node configuration|[Mm]emory", "sinfo -o '%P %c CPUs %m MB %G'   # then the site file"),
    (r"[Nn]ode count", "sinfo -o '%P %D'   # then -n N"),
    (r"[Pp]artition configuration", "sinfo -o '%P %l %D'   # then --time, -n or -p"),
    (r"[Ff]eature", "sinfo -o '%P %f'   # then --constraint= in sbatch: of the site file"),
    (r"[Pp]artition.*(inactive|down|drain|not available)", "sinfo --summarize   # then -p of one that is up"),
    (r"policy|limit", f"{MINE},maxjobs,maxtres   # then -q NAME, fewer nodes or less time"),
)


def gpus_of(tres: str) -> int | None:
    """The GPUs in a limit of sacctmgr, whatever their type; None if it does not limit them.

    >>> gpus_of("cpu=32,gres/gpu=8,node=2"), gpus_of("node=2")
    (8, None)
    """
    found = [part.partition("=")[2] for part in tres.split(",") if part.startswith("gres/gpu=")]
    return int(found[0]) if found and found[0].isdigit() else None


def submission(around: Surroundings) -> CheckResult:
    """A real request of exercise 1, judged by sbatch and not submitted."""
    options = options_of(Path(around.job.output_dir), around.job.directives)
    reserved = bool(around.environ.get("SBATCH_RESERVATION")) or "reservation" in " ".join(around.site.sbatch)
    return _judged(ask("sbatch", "--test-only", *options, "--wrap=true"), reserved)


def _judged(answer: ProgramOutput, reserved: bool) -> CheckResult:
    """Whether sbatch would take the job, from `sbatch --test-only`. reserved: it names a reservation."""
    what = "sbatch --test-only of exercise 1"
    said = (answer.err or answer.out).strip()
    if answer.code == 0:
        start = re.search(r"to start at (\S+) .*", said)
        return ok(what, f"would be accepted, to start at {start[1]}" if start else "would be accepted")
    if reserved and "Invalid time specified" in said:  # sbatch itself takes such a job, and it waits
        return unseen(what, "cannot be judged before its reservation begins: scontrol show reservation")
    lines = [re.sub(r"^(sbatch: )?(error: )?(allocation failure: )?", "", line) for line in said.splitlines()]
    text = "; ".join(dict.fromkeys(line for line in lines if line)) or answer.reason
    known = (remedy for pattern, remedy in REFUSED if re.search(pattern, said))
    return problem(what, f"refused: {text}", next(known, f"{COMMAND} -e 1 --dry-run | head -n 30"))


def qos(around: Surroundings) -> CheckResult | None:
    """Whether exercise 1 fits into the time and the GPUs that the QOS allows, if the cluster has accounting."""
    name, job = around.site.qos, around.job
    if name is None or around.which("sacctmgr") is None:
        return None
    answer = ask("sacctmgr", "-n", "-P", "show", "qos", name, "format=MaxWall,MaxTRES,MaxTRESPU")
    line = (answer.out.strip().splitlines() or [""])[0]
    if answer.code or line.count("|") != 2:
        return None  # whether there is such a QOS is sbatch's to say
    wall, *limits = line.split("|")
    limit_s, gpus = seconds_of(wall), [found for found in map(gpus_of, limits) if found is not None]
    most = clock_text(limit_s) if limit_s is not None else "without limit"
    asked = job.experiment.world_size or 0
    if limit_s is not None and job.site.time_s > limit_s:
        why = f"limits a job to {most}, but the site asks for {job.site.time}: it would wait for ever"
        return problem(f"qos {name}", why, f"{COMMAND} -e 1 --time {most}   # or time: in the site file")
    if job.device == "cuda" and gpus and asked > min(gpus):
        why = f"limits you to {min(gpus)} GPUs at a time, but exercise 1 asks for {asked}: it would wait for ever"
        return problem(f"qos {name}", why, f"{COMMAND} -e 1 -g {min(gpus)}   # or -q another")
    return ok(f"qos {name}", f"allows a job {most}" + f", {min(gpus)} GPUs for you at a time" * bool(gpus))
