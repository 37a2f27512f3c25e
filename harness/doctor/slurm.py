"""Slurm as a student meets it: commands, controller, partition, QOS, reservation, and a real request. Submits
nothing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from harness.common.errors import nearest
from harness.common.programs import Answer
from harness.common.slurm_notation import clock_text, fields_of, moment_of, names_of, seconds_of, words_of
from harness.doctor.surroundings import Level, Result, Surroundings, ok, problem, unseen, warning
from harness.launch.backends.slurm import options_of
from harness.launch.job import Job
from harness.site.site import Site
from harness.site.slurm_commands import PING_S, ask


def gpus_of(tres: str) -> int | None:
    """The GPUs in a limit of sacctmgr, whatever their type; None if it does not limit them.

    >>> gpus_of("cpu=32,gres/gpu=8,node=2"), gpus_of("node=2")
    (8, None)
    """
    found = [part.partition("=")[2] for part in tres.split(",") if part.startswith("gres/gpu=")]
    return int(found[0]) if found and found[0].isdigit() else None


SHOW = "scontrol show reservation"


def reservation(around: Surroundings) -> Iterator[Result]:
    """Each reservation that a job of the site asks for."""
    name = named(around.site, around.environ)
    if name is not None:
        answer = ask("scontrol", "--oneliner", "show", "reservation", name)
        who = (around.user, around.site.account)
        yield reservation_verdict(name, answer, who, datetime.now())


def named(site: Site, environ: Mapping[str, str]) -> str | None:
    """The reservation in the site's `sbatch` lines, else in SBATCH_RESERVATION; None for none."""
    words = words_of(site.sbatch)
    for index, word in enumerate(words):
        if word == "--reservation" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--reservation="):
            return word.partition("=")[2]
    return environ.get("SBATCH_RESERVATION") or None


def reservation_verdict(name: str, answer: Answer, who: tuple[str, str | None], now: datetime) -> Result:
    """Whether it can be used. who: our name and our account. now: in the site's own time."""
    what = f"reservation {name}"
    found = fields_of(answer.out)
    if answer.code or "ReservationName" not in found:
        listed = f"{SHOW}   # those that there are; then sbatch: in the site file"
        return problem(what, "there is no reservation of that name, or you may not see it", listed)
    begins, ends = moment_of(found.get("StartTime", "")), moment_of(found.get("EndTime", ""))
    if not lets_in(found, who):
        users = ", ".join([*names_of(found.get("Users", "")), *names_of(found.get("Accounts", ""))])
        add = f"scontrol update reservation={name} users+={who[0]}   # administrators"
        return problem(what, f"is for {users}, and you are {who[0]} (account {who[1] or 'not named'})", add)
    if ends is not None and ends <= now:
        return problem(what, f"ended at {ends:%Y-%m-%d %H:%M}", f"{SHOW}   # then sbatch: in the site file")
    if found.get("State") != "ACTIVE" and begins is not None and begins > now:
        wait = "bash slurm.sh doctor   # again when it has begun; or leave it out of sbatch: in the site file"
        return warning(what, f"begins at {begins:%Y-%m-%d %H:%M}: jobs wait until then", wait)
    if found.get("State") != "ACTIVE":
        return problem(what, f"is {found.get('State', 'of unknown state')}", f"{SHOW} {name}")
    until = f" until {ends:%Y-%m-%d %H:%M}" if ends else ""
    return ok(what, f"is active{until}, nodes {found.get('Nodes', 'not named')}")


def lets_in(fields: Mapping[str, str], who: tuple[str, str | None]) -> bool:
    """Whether a user of an account may use it. A - shuts out; an account that is not named is not judged."""
    users, accounts = names_of(fields.get("Users", "")), names_of(fields.get("Accounts", ""))
    user, account = who
    if f"-{user}" in users or f"-{account}" in accounts:
        return False
    allowed_users = [name for name in users if not name.startswith("-")]
    allowed_accounts = [name for name in accounts if not name.startswith("-")]
    by_user = not allowed_users or user in allowed_users
    by_account = not allowed_accounts or account is None or account in allowed_accounts
    return by_user and by_account


NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol")
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
            f"partition {name}", why, f"bash slurm.sh -e 1 --time {clock_text(limit_s)}   # or time: in the site file"
        )
    if (total := found.get("TotalNodes", "")).isdigit() and int(total) < nodes:
        return problem(f"partition {name}", f"has {total} nodes, {nodes} requested", f"bash slurm.sh -e 1 -n {total}")
    most = clock_text(limit_s) if limit_s is not None else "without limit"
    return ok(f"partition {name}", f"is up, {total or '?'} nodes; a job may run {most}, the site asks for {site.time}")


def nodes(around: Surroundings) -> Iterator[Result]:
    """Whether any node of the partition works."""
    named = [f"--partition={around.site.partition}"] if around.site.partition else []
    answer = ask("sinfo", "--noheader", "--format=%T %D", *named)
    if answer.code == 0 and answer.out.strip():
        yield nodes_verdict(answer.out, around.nodes)


def nodes_verdict(printed: str, wanted: int) -> Result:
    """Whether enough nodes work, from lines of a state and a number."""
    counts = {line.split()[0]: int(line.split()[1]) for line in printed.splitlines() if len(line.split()) == 2}
    working = sum(n for state, n in counts.items() if re.match(r"(idle|mixed|allocated|completing|reserved)", state))
    found = ", ".join(f"{n} {state}" for state, n in counts.items())
    if working < wanted:
        return problem("nodes", f"{found}: {working} work, {wanted} requested", "sinfo --list-reasons")
    return ok("nodes", found)


def submission(around: Surroundings) -> Iterator[Result]:
    """A real request of exercise 1, judged by sbatch and not submitted."""
    if around.job is None:
        return
    options = options_of(Path(around.job.output_dir), around.job.directives)
    answer = ask("sbatch", "--test-only", *options, "--wrap=true")
    yield submission_verdict(answer, waits_for=named(around.site, around.environ))
    if around.site.account:
        config = ask("scontrol", "show", "config")
        if re.search(r"AccountingStorageType\s*=\s*(accounting_storage/none|\(null\))", config.out):
            yield unseen(f"account {around.site.account}", "this cluster has no accounting: it accepts any name")


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
        (each for pattern, each in REFUSED if re.search(pattern, said)), "bash slurm.sh -e 1 --dry-run | head -n 30"
    )
    return problem(what, f"refused: {text}", remedy)


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
