"""The only client of Slurm's commands. Each has a time limit and a clean environment. Knows no run."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from harness.common.display.printable import COLOUR
from harness.common.errors import WorkError
from harness.common.system.programs import NOT_THERE, TOO_LATE, ProgramOutput
from harness.common.system.programs import ask as ask_program
from harness.common.system.slurm_notation import unix_ns
from harness.common.system.users import this_user

KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})
# SCANCEL_STATE and its like would narrow an order or a question to other jobs than the one that is meant.
LEAKING = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SCANCEL_", "SQUEUE_", "PMI_", "PMIX_")
# A submission that waits would block the launcher while the job waits for its run directory, which the launcher makes
# after the submission. An array would be many jobs of one run.
MISLEADING = frozenset({"SBATCH_WAIT", "SBATCH_ARRAY_INX"})
# An order must not be cut short; a question has other sources; to cancel twice does no harm.
ORDER_S, CANCEL_S, ASK_S, QUESTION_S, PING_S = 120, 30, 20, 6, 5
CANCEL_IN_SILENCE_S = 6  # where the controller has just not answered a question
AGAIN_S = 30.0  # so long after a question without an answer, its server is not asked

Server = Literal["controller", "accounts"]
SERVERS: dict[str, Server] = {"squeue": "controller", "scontrol": "controller", "sacct": "accounts"}
# How the clients say that their server did not answer, which they do after a minute or at once.
NO_ANSWER = re.compile(
    r"Unable to contact|[Ss]ocket timed out|connect(ion)? fail|Connection (refused|timed out|reset)|"
    r"[Pp]roblem talking to the database|No route to host|Network is unreachable|Zero Bytes were transmitted|"
    r"Could not establish a configuration source"
)
UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
HAS_ENDED = re.compile(r"already complet", re.IGNORECASE)
# sbatch's own two forms; a site's wrapper adds lines of its own.
_SUBMITTED = re.compile(r"(?:Submitted batch job )?(\d+)(?:(?:;| on cluster )(\S+))?")
# What sbatch says where the controller may have taken the job.
_UNDECIDED = re.compile(r"timed out|Zero Bytes were transmitted|Connection reset")
_silent: dict[tuple[Server, str | None], float] = {}
_ENTRY = ("--noheader", "--format=%i|%T|%S|%e|%r")


class JobId(NamedTuple):
    """A job: its number, and the cluster that gave it where that is not the default one."""

    number: str
    cluster: str | None = None

    @property
    def options(self) -> list[str]:
        return [*self.on_cluster, f"--jobs={self.number}"]

    @property
    def on_cluster(self) -> list[str]:
        return [f"--clusters={self.cluster}"] if self.cluster else []


def sbatch(*words: str) -> JobId:
    """Submit with these options and script; returns the job, which is looked for in the queue where sbatch does not
    tell it. Raises WorkError: sbatch refused, in its own words; or nobody knows whether there is a job."""
    answer = ask("sbatch", "--parsable", *words, limit_s=ORDER_S)
    if answer.code == NOT_THERE:
        raise WorkError("sbatch is not on PATH: log in to the cluster, or use --site local")
    lines = (_SUBMITTED.fullmatch(line.strip()) for line in COLOUR.sub("", answer.out).splitlines())
    told = {JobId(*found.groups()) for found in lines if found}
    if len(told) == 1:
        return told.pop()
    said = answer.err.strip() or answer.out.strip() or f"nothing (exit code {answer.code})"
    if answer.code == TOO_LATE:
        said = "sbatch did not answer within two minutes"
    elif answer.code == 0:
        said = f"sbatch printed no job id but: {answer.out.strip() or 'nothing'}"
    elif not _UNDECIDED.search(answer.err):
        raise WorkError(f"sbatch refused the job: {said}")
    return _submitted_as(words, said)


def _submitted_as(words: Sequence[str], said: str) -> JobId:
    """The job that these words of sbatch submitted, by its name and script. Raises WorkError: the queue has none yet,
    or does not answer. said: what sbatch told instead."""
    name = next((word for word in reversed(words) if word.startswith("--job-name=")), "").partition("=")[2]
    script = next((word for word in reversed(words) if word.startswith("/")), "")
    mine = (f"--user={this_user()}", f"--name={name}")
    listed = ask("squeue", "--noheader", "--format=%F|%o", *mine, limit_s=QUESTION_S).out.splitlines()
    found = {number for number, _, command in (line.strip().partition("|") for line in listed) if script in command}
    if len(found) == 1 and (number := found.pop()).isdigit():
        return JobId(number)
    raise WorkError(
        f"{said}: the job may be in the queue: look with squeue {' '.join(mine)}, and cancel it by its number"
    )


def scancel(job: JobId) -> None:
    """Cancel the job. One that has ended stays as it is. Raises WorkError: scancel refused, with its own sentence, or
    the controller does not answer."""
    limit_s = CANCEL_IN_SILENCE_S if is_silent("controller", job.cluster) else CANCEL_S
    answer = ask("scancel", *job.on_cluster, job.number, limit_s=limit_s)
    if answer.code == NOT_THERE:
        raise WorkError(f"scancel {job.number}: it is not on PATH: log in to the cluster")
    if answer.code == TOO_LATE or (answer.code and NO_ANSWER.search(answer.err)):
        raise WorkError(
            f"Slurm does not answer: the cancellation of job {job.number} is not confirmed; ask again in a minute"
        )
    if answer.code and not HAS_ENDED.search(answer.err):
        raise WorkError(f"scancel {job.number}: {answer.reason}")


class JobReply(NamedTuple):
    """A program's answer about a job: `text` is empty if it does not know the job; `replied`: whether it answered.
    silent: its server did not answer, now or a moment ago."""

    text: str
    replied: bool = True
    silent: bool = False


def squeue(job: JobId, field: str) -> JobReply:
    """One field, as `%T`, of a job that waits, runs or ends."""
    return _job_reply(_question(job.cluster, "squeue", "--noheader", f"--format={field}", *job.options))


class QueueEntry(NamedTuple):
    """A job in the queue, or running, as squeue writes it: number, state, expected or real start and end, reason."""

    number: str
    word: str
    starts: str
    ends: str
    reason: str

    @property
    def starts_ns(self) -> int | None:
        """Unix time at which it began or is expected to; None: Slurm does not say."""
        return unix_ns(self.starts)

    @property
    def ends_ns(self) -> int | None:
        """Unix time at which its time limit ends it; None: Slurm does not say."""
        return unix_ns(self.ends)


def squeue_all(cluster: str | None, numbers: Iterable[str]) -> dict[str, QueueEntry] | None:
    """Jobs of a cluster by number, asked in one question. A job that is not listed has left the queue. None: squeue did
    not answer."""
    options = (*JobId("", cluster).on_cluster, f"--jobs={','.join(sorted(set(numbers)))}")
    answer = _question(cluster, "squeue", *_ENTRY, "--array", *options)
    if answer is None or (answer.code and not UNKNOWN_JOB.search(answer.err)):
        return None
    return {entry.number: entry for entry in _entries(answer.out)}


def _entries(text: str) -> Iterator[QueueEntry]:
    for line in text.splitlines():
        fields = line.strip().split("|", len(QueueEntry._fields) - 1)
        if len(fields) == len(QueueEntry._fields):
            yield QueueEntry(*fields)


def sacct(job: JobId) -> JobReply:
    """The job's state in the accounts."""
    options = ("--noheader", "--parsable2", "--allocations", "--format=State")
    return _job_reply(_question(job.cluster, "sacct", *options, *job.options))


def scontrol(job: JobId) -> JobReply:
    """All fields of a job, `NAME=VALUE` on one line, until minutes after its end."""
    return _job_reply(_question(job.cluster, "scontrol", "--oneliner", *job.on_cluster, "show", "job", job.number))


def is_silent(server: Server, cluster: str | None) -> bool:
    """Whether this server of this cluster did not answer a moment ago. It is not asked again for a while."""
    since_s = _silent.get((server, cluster))
    return since_s is not None and time.monotonic() - since_s < AGAIN_S


def number_in_config(name: str) -> int | None:
    """A number of the configuration; None: the controller does not say."""
    answer = _question(None, "scontrol", "show", "config")
    found = re.search(rf"^{name}[ \t]*=[ \t]*(\d+)", answer.out, re.MULTILINE) if answer else None
    return int(found[1]) if found else None


def in_queue(job: JobId) -> bool:
    """Whether Slurm still lists the job; also True if squeue does not say."""
    told = squeue(job, "%T")
    return not told.replied or bool(told.text)


def ask(*argv: str, limit_s: float = ASK_S) -> ProgramOutput:
    """One of Slurm's commands as typed, for who reads its words; its status says also that it is not there."""
    # Without the variables that would change the new job, as an enclosing job's.
    kept = {k: v for k, v in os.environ.items() if k in KEPT or not (k in MISLEADING or k.startswith(LEAKING))}
    return ask_program(argv, limit_s, kept)


def controller_answers() -> bool:
    if not (shutil.which("sbatch") and shutil.which("scontrol")):
        return False
    answer = ask("scontrol", "ping", limit_s=PING_S)
    return answer.code == 0 and "UP" in answer.out


def _job_reply(answer: ProgramOutput | None) -> JobReply:
    """The first line of an answer. With --clusters, the cluster's name stands above it."""
    if answer is None:
        return JobReply("", replied=False, silent=True)
    if answer.code != 0:
        return JobReply("", replied=UNKNOWN_JOB.search(answer.err) is not None)
    lines = (line.strip() for line in answer.out.splitlines())
    return JobReply(next((line for line in lines if line and not line.startswith("CLUSTER:")), ""))


def _question(cluster: str | None, program: str, *words: str) -> ProgramOutput | None:
    """The program's answer; None if its server did not answer, now or a moment ago."""
    server = SERVERS[program]
    if is_silent(server, cluster):
        return None
    answer = ask(program, *words, limit_s=QUESTION_S)
    if answer.code == TOO_LATE or (answer.code and NO_ANSWER.search(answer.err)):
        _silent[server, cluster] = time.monotonic()
        return None
    _silent.pop((server, cluster), None)
    return answer
