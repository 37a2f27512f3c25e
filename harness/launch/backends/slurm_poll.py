"""What Slurm, and else the job itself, says of a run. It asks squeue, then scontrol, then sacct; it changes nothing.

Part of the Slurm backend. The accounts are asked last: they lag behind the controller, and a controller that has not
forgotten the job knows better.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.launch.backends.protocol import Listed, PolledState
from harness.launch.backends.slurm_queue import of_these, places_of
from harness.launch.backends.slurm_states import Meaning, meaning_of, plain
from harness.run import FINAL, ITSELF, Run, Status
from harness.site.slurm_commands import (
    JobId,
    JobReply,
    fields_of,
    sacct,
    scontrol,
    squeue,
    squeue_all,
    squeue_everybody,
)

NO_REASON = ("", "None", "(null)")
WENT_ON = "Slurm reported one of its nodes as lost, but it ran to its end: its reports are there"


class SlurmReply(NamedTuple):
    """What Slurm says of a job. Without a word, `gap` says why there is none."""

    word: str = ""
    reason: str = ""
    gap: str = ""
    silent: bool = False
    forgotten: bool = False


def job_of(run: Run) -> JobId:
    """The run's job, which several runs may share."""
    return JobId(run.job_id.partition("-")[0], run.record.cluster)


def shares_allocation(run: Run) -> bool:
    """Whether the run is one of several in an allocation."""
    return "-" in run.job_id


def poll(run: Run) -> PolledState:
    """The run's state now."""
    job, own = job_of(run), run.status()
    reply = _ask(job, has_ended=own is not None and own.state in FINAL)
    found = _told(job, reply, own) if reply.word else _no_reply(reply, own)
    return _in_allocation(found, own) if shares_allocation(run) else found


def listed(runs: Sequence[Run], places: bool = False) -> dict[Path, Listed] | None:
    """The runs that Slurm lists, asked in one question for each cluster; None: it does not answer.

    places: the question is about the jobs of all users, as a place in the queue is a comparison with them. If a cluster
    does not answer that, or hides them, the usual question follows, and no place is known.
    """
    found: dict[Path, Listed] = {}
    for cluster in sorted({run.record.cluster for run in runs}, key=str):
        jobs = {run.path: (run, job_of(run)) for run in runs if run.record.cluster == cluster}
        numbers = {job.number for _, job in jobs.values()}
        everybody = squeue_everybody(cluster) if places else None
        queue = squeue_all(cluster, numbers) if everybody is None else of_these(everybody, numbers)
        if queue is None:
            return None
        place_of = places_of(everybody or [], numbers)
        for path, (run, job) in jobs.items():
            if entry := queue.get(job.number):
                own = run.status()
                state = _told(job, SlurmReply(entry.word, entry.reason), own)
                state = _in_allocation(state, own) if shares_allocation(run) else state
                place = place_of.get(job.number)
                found[path] = Listed(state, entry.starts_ns, entry.ends_ns, entry.partition, place)
    return found


def _ask(job: JobId, has_ended: bool) -> SlurmReply:
    """has_ended: the job itself says so; accounts that have it as running then lag behind."""
    queue = squeue(job, "%T|%r")
    if queue.text:
        word, _, reason = queue.text.partition("|")
        return SlurmReply(word, reason)
    shown = scontrol(job)
    fields = fields_of(shown)
    if "JobState" in fields:
        return SlurmReply(fields["JobState"], fields.get("Reason", ""))
    return _by_accounts(job, queue, shown, has_ended)


def _by_accounts(job: JobId, queue: JobReply, shown: JobReply, has_ended: bool) -> SlurmReply:
    """What the accounts say of a job that the controller does not know, or did not answer for."""
    accounts, forgotten = sacct(job), queue.replied and shown.replied
    if accounts.text and meaning_of(accounts.text, job.number).state in FINAL:
        return SlurmReply(accounts.text)
    if accounts.text and not (forgotten or has_ended):
        return SlurmReply(
            accounts.text, gap="Slurm's controller does not answer, and its accounts lag behind"
        )
    if not forgotten:
        silent = queue.silent or shown.silent
        return SlurmReply(
            gap="Slurm does not answer" if silent else "Slurm's commands do not answer here", silent=silent
        )
    if accounts.silent:
        return SlurmReply(
            gap="Slurm's controller has forgotten the job, and its accounts do not answer", silent=True
        )
    return SlurmReply(gap=f"Slurm does not know job {job.number} any more", forgotten=True)


def _told(job: JobId, reply: SlurmReply, own: Status | None) -> PolledState:
    """The state by Slurm's word, or the job's own, which is more precise where it ended before Slurm stopped it."""
    if own is not None and own.is_settled and own.told_by == plain(reply.word):
        return PolledState(own.state, own.why, told_by=own.told_by)  # it was written down
    means = meaning_of(reply.word, job.number)
    by_itself = own is not None and own.is_own_word and own.state in FINAL
    left_early = own is not None and by_itself and own.state in ("timeout", "cancelled", "stuck")
    if own is not None and left_early and means.state in ("failed", "completed"):
        return PolledState(own.state, told_by=ITSELF)
    if own is not None and by_itself and own.state == "stuck" and means.state in FINAL:
        # A node that was lost, or a cancellation, came while it ended.
        return PolledState("stuck", told_by=ITSELF)
    if own is not None and by_itself and (own.state, means.state) == ("completed", "node_fail"):
        return PolledState("completed", WENT_ON)
    if means.state not in FINAL:
        waits = _reasons(reply.reason) if means.state == "queued" else ""
        why = means.why or waits or reply.gap
        return PolledState(means.state, why, ending=means.ending, suspended=means.suspended)
    why = means.why or ("" if by_itself else _how_it_ended(means, reply, own))
    if own is not None and by_itself and own.state == means.state == "failed" and why:
        # Which rank was killed for memory, and that Slurm saw it too.
        why = "; ".join(filter(None, [own.why, why]))
    return PolledState(
        means.state,
        why,
        told_by=None if by_itself and own is not None and own.is_settled else plain(reply.word),
    )


def _reasons(reason: str) -> str:
    """Why it waits, without words for nothing: of an array's tasks that wait as one, `None,JobHeldUser`."""
    return ", ".join(each for each in reason.split(",") if each not in NO_REASON)


def _how_it_ended(means: Meaning, reply: SlurmReply, own: Status | None) -> str:
    """Of a job that did not write its end."""
    if own is None or (own.started_ns is None and own.told_by):
        never = means.state == "failed" and reply.reason not in NO_REASON
        return f"it never started: Slurm says {reply.reason}" if never else own.why if own else ""
    if means.state in ("failed", "timeout"):
        return f"it was ended before it could write its exit status; Slurm says {plain(reply.word)}"
    return ""


def _no_reply(reply: SlurmReply, own: Status | None) -> PolledState:
    """The job's own word, if Slurm says nothing. A job that only said it had begun may have ended since."""
    if own is not None and own.told_by is not None:
        return PolledState(own.state, own.why)
    if own is not None and own.state in FINAL:
        last = f"{reply.gap}; the last state that the job wrote: {own.state}" if reply.silent else ""
        return PolledState(own.state, last, told_by=ITSELF if reply.forgotten else None)
    last = (
        "the job has written nothing yet"
        if own is None
        else f"the last state that the job wrote: {own.state}"
    )
    return PolledState("unknown", f"{reply.gap}; {last}", silent=reply.silent)


def _in_allocation(found: PolledState, own: Status | None) -> PolledState:
    """One of several runs in an allocation: its own word, else what the allocation's state leaves it."""
    if own is not None and own.state in FINAL and own.is_own_word:
        return PolledState(own.state, told_by=ITSELF)
    if found.state == "running" and own is None:
        return PolledState(
            "queued", "runs before it in the same allocation have not ended", ending=found.ending
        )
    if found.state == "completed":  # the allocation ended, and the run had not
        return found._replace(state="failed", why="its allocation ended before it")
    return found
