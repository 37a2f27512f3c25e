"""Slurm as a student meets it: commands, controller, partition, reservation, and a real request. Submits nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.common.errors import nearest
from harness.common.programs import Answer
from harness.doctor.reservation import named
from harness.doctor.result import Level, Result, ok, problem, unseen, warning
from harness.doctor.slurm_notation import fields_of, seconds_of
from harness.doctor.surroundings import Surroundings
from harness.format.format import clock_text
from harness.launch.backends.slurm import trial
from harness.site.site import Site
from harness.site.slurm_commands import PING_S, ask

NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol")
MINE = "sacctmgr show associations user=$USER format=account,partition,qos"
# What sbatch says when it refuses, and what to do.
REFUSED = (
    (r"[Ii]nvalid account", f"{MINE}   # then -a NAME, or account: in the site file"),
    (r"[Ii]nvalid qos", f"{MINE}   # then -q NAME, or qos: in the site file"),
    (
        r"[Ii]nvalid partition|[Nn]o partition",
        "sinfo --summarize   # then -p NAME, or partition: in the site file",
    ),
    (r"not permitted to use this partition", f"{MINE}   # then -p NAME of one that you may use"),
    (r"time limit", "sinfo -o '%P %l'   # then --time HH:MM:SS, or time: in the site file"),
    (r"reservation", "scontrol show reservation   # then --reservation= in sbatch: of the site file"),
    (r"gres|generic resource", "sinfo -o '%P %G'   # then gpus: in the site file"),
    (r"CPU count|node configuration|[Mm]emory", "sinfo -o '%P %c CPUs %m MB %G'   # then the site file"),
    (r"[Nn]ode count", "sinfo -o '%P %D'   # then -n N"),
    (r"[Ff]eature", "sinfo -o '%P %f'   # then --constraint= in sbatch: of the site file"),
    (r"[Pp]artition.*(inactive|down|drain|not available)", "sinfo --summarize   # then -p of one that is up"),
    (r"policy|limit", f"{MINE},maxjobs,maxtres   # then -q NAME, fewer nodes or less time"),
)


def commands(around: Surroundings) -> Iterator[Result]:
    """The commands that the harness calls."""
    missing = [name for name in NEEDED if around.which(name) is None]
    here = "bash slurm.sh doctor --site local   # for this machine alone; else log in to the cluster"
    if missing:
        yield problem(", ".join(NEEDED), f"not on PATH: {', '.join(missing)}", here)
        return
    yield ok(", ".join(NEEDED), f"in {Path(shutil.which('sbatch') or '').parent}")
    if around.which("sacct") is None:
        why = "is not on PATH: for jobs that ended long ago, only their own status files are known"
        yield warning("sacct", why, "module avail slurm")


def controller(around: Surroundings) -> Iterator[Result]:
    """Whether slurmctld answers."""
    if around.which("scontrol") is not None:
        yield controller_verdict(_ping(around))


def _ping(around: Surroundings) -> Answer:
    return around.once("ping", lambda: ask("scontrol", "ping", limit_s=PING_S))


def answers(around: Surroundings) -> bool:
    """Whether Slurm's commands are here, and the controller answers them."""
    here = all(map(around.which, NEEDED))
    return here and controller_verdict(_ping(around)).level is Level.OK


def controller_verdict(answer: Answer) -> Result:
    """Whether the controller is up, from `scontrol ping`."""
    if answer.code == 0 and " UP" in answer.out:
        return ok("scontrol ping", answer.out.strip().splitlines()[0])
    said = answer.out.strip() or answer.reason
    return problem("scontrol ping", said, "scontrol ping   # again in a minute; then the site's helpdesk")


def partition(around: Surroundings) -> Iterator[Result]:
    """The partition that the site names, else the cluster's default one."""
    named = [around.site.partition] if around.site.partition else []
    answer = ask("scontrol", "--oneliner", "show", "partition", *named)
    yield partition_verdict(answer, around.site, around.nodes, _partitions())


def _partitions() -> list[str]:
    answer = ask("sinfo", "--noheader", "--format=%R")
    return sorted(set(answer.out.split())) if answer.code == 0 else []


def partition_verdict(answer: Answer, site: Site, nodes: int, others: list[str]) -> Result:
    """Whether it is there, up, large enough, and lets a job run as long as the site asks."""
    what = f"partition {site.partition}" if site.partition else "default partition"
    lines = [fields_of(line) for line in answer.out.splitlines()]
    found = next((each for each in lines if site.partition or each.get("Default") == "YES"), None)
    if answer.code or not found:
        near = nearest(site.partition or "", others)
        hint = f"did you mean {near}? " if near else ""
        choose = f"sinfo --summarize   # {hint}then -p NAME, or partition: in the site file"
        return problem(what, answer.reason if answer.code else "there is none: name one", choose)
    name, state, limit_s = (
        found.get("PartitionName", ""),
        found.get("State", ""),
        seconds_of(found.get("MaxTime", "")),
    )
    if state != "UP":
        return problem(f"partition {name}", f"is {state}", "sinfo --summarize   # then -p of one that is up")
    if limit_s is not None and site.time_s > limit_s:
        why = f"limits a job to {clock_text(limit_s)}, but the site asks for {site.time}"
        return problem(
            f"partition {name}",
            why,
            f"bash slurm.sh -e 1 --time {clock_text(limit_s)}   # or time: in the site file",
        )
    if (total := found.get("TotalNodes", "")).isdigit() and int(total) < nodes:
        return problem(
            f"partition {name}", f"has {total} nodes, {nodes} requested", f"bash slurm.sh -e 1 -n {total}"
        )
    most = clock_text(limit_s) if limit_s is not None else "without limit"
    return ok(
        f"partition {name}",
        f"is up, {total or '?'} nodes; a job may run {most}, the site asks for {site.time}",
    )


def nodes(around: Surroundings) -> Iterator[Result]:
    """Whether any node of the partition works."""
    named = [f"--partition={around.site.partition}"] if around.site.partition else []
    answer = ask("sinfo", "--noheader", "--format=%T %D", *named)
    if answer.code == 0 and answer.out.strip():
        yield nodes_verdict(answer.out, around.nodes)


def nodes_verdict(printed: str, wanted: int) -> Result:
    """Whether enough nodes work, from lines of a state and a number."""
    counts = {
        line.split()[0]: int(line.split()[1]) for line in printed.splitlines() if len(line.split()) == 2
    }
    working = sum(
        n for state, n in counts.items() if re.match(r"(idle|mixed|allocated|completing|reserved)", state)
    )
    found = ", ".join(f"{n} {state}" for state, n in counts.items())
    if working < wanted:
        return problem("nodes", f"{found}: {working} work, {wanted} requested", "sinfo --list-reasons")
    return ok("nodes", found)


def submission(around: Surroundings) -> Iterator[Result]:
    """A real request of exercise 1, judged by sbatch and not submitted."""
    if around.job is None:
        return
    answer = trial(Path(around.job.output_dir), around.job.directives)
    yield submission_verdict(answer, waits_for=named(around.site, around.environ))
    if around.site.account:
        config = ask("scontrol", "show", "config")
        if re.search(r"AccountingStorageType\s*=\s*(accounting_storage/none|\(null\))", config.out):
            yield unseen(
                f"account {around.site.account}", "this cluster has no accounting: it accepts any name"
            )


def submission_verdict(answer: Answer, waits_for: str | None = None) -> Result:
    """Whether sbatch would take the job, from `sbatch --test-only`. waits_for: the reservation that the job names."""
    what = "sbatch --test-only of exercise 1"
    said = (answer.err or answer.out).strip()
    if answer.code == 0:
        start = re.search(r"to start at (\S+) .*", said)
        return ok(what, f"would be accepted, to start at {start[1]}" if start else "would be accepted")
    if waits_for and "Invalid time specified" in said:  # sbatch itself takes such a job, and it waits
        return unseen(what, f"cannot be judged before reservation {waits_for} begins")
    lines = [re.sub(r"^(sbatch: )?(error: )?(allocation failure: )?", "", line) for line in said.splitlines()]
    text = "; ".join(dict.fromkeys(line for line in lines if line)) or answer.reason
    remedy = next(
        (each for pattern, each in REFUSED if re.search(pattern, said)),
        "bash slurm.sh -e 1 --dry-run | head -n 30",
    )
    return problem(what, f"refused: {text}", remedy)
