"""What Slurm, and else the job itself, says of a run. It asks squeue, then scontrol, then sacct; it changes nothing.
Part of the Slurm backend. The accounts are asked last: they lag behind the controller, and a controller that has not
forgotten the job knows better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.common.system.slurm_notation import fields_of
from harness.launch.backends.protocol import Listed, PolledState
from harness.run import Run
from harness.run.record import FINAL, ITSELF, Status
from harness.site.slurm_commands import JobId, sacct, scontrol, squeue, squeue_all

_AGAIN = "Slurm puts it back into the queue, and it will run again under the same id"
_HELD = "Slurm put it back into the queue and holds it there: scontrol release {job}, or cancel it"
_PAUSED = "Slurm has suspended it: its step times will not be valid"

_UNSEEN = "often the node does not see the folder of the runs, which HARNESS_RUNS names; else submit it again"
MEANINGS: dict[str, PolledState] = {
    "PENDING": PolledState("queued"),
    "CONFIGURING": PolledState("queued", "its nodes are being configured"),
    "POWER_UP_NODE": PolledState("queued", "its nodes are being powered up"),
    "REQUEUED": PolledState("queued", _AGAIN),
    "REQUEUE_FED": PolledState("queued", _AGAIN),
    "EXPEDITING": PolledState("queued", _AGAIN),
    "REQUEUE_HOLD": PolledState("queued", _HELD),
    "SPECIAL_EXIT": PolledState("queued", _HELD),
    "RESV_DEL_HOLD": PolledState(
        "queued", "its reservation was deleted, so Slurm holds it: cancel it and submit again"
    ),
    "RUNNING": PolledState("running"),
    "SIGNALING": PolledState("running"),
    "RESIZING": PolledState("running"),
    "STAGE_OUT": PolledState("running", "its commands have ended, and Slurm still copies its files"),
    "SUSPENDED": PolledState("running", _PAUSED, suspended=True),
    "STOPPED": PolledState("running", _PAUSED, suspended=True),
    "COMPLETING": PolledState("running", "it is ending: Slurm waits for its last processes", ending=True),
    "COMPLETED": PolledState("completed"),
    "FAILED": PolledState("failed"),
    "OUT_OF_MEMORY": PolledState("failed", "Slurm ended it because it used more memory than the job requested"),
    "CANCELLED": PolledState("cancelled"),
    "PREEMPTED": PolledState("cancelled", "a job of higher priority took its nodes: submit it again"),
    "REVOKED": PolledState("cancelled", "another cluster of the federation runs this job"),
    "TIMEOUT": PolledState("timeout"),
    "DEADLINE": PolledState("timeout", "it could not have ended before its deadline (--deadline)"),
    "NODE_FAIL": PolledState("node_fail", "one of its nodes failed: submit it again"),
    "BOOT_FAIL": PolledState("node_fail", "one of its nodes could not be started: submit it again"),
    "LAUNCH_FAILED": PolledState("node_fail", f"its nodes could not start it: {_UNSEEN}"),
    "RECONFIG_FAIL": PolledState("node_fail", "one of its nodes could not be set up for it: submit it again"),
}
NO_REASON = ("", "None", "(null)")
WENT_ON = "Slurm reported one of its nodes as lost, but it ran to its end: its reports are there"


def meaning_of(word: str, job_id: str) -> PolledState:
    """What a word means for job number `job_id`; as sacct writes it too, `CANCELLED by 1000` and `CANCELLED+`."""
    name = plain(word)
    if name not in MEANINGS:  # not an end: who waits goes on waiting
        return PolledState("unknown", f"Slurm's state {name} is not known here")
    found = MEANINGS[name]
    return found._replace(why=found.why.format(job=job_id))


def plain(word: str) -> str:
    return (word.split() or [""])[0].rstrip("+")


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
    own = run.status()
    return _state(run, own, _ask(job_of(run), has_ended=own is not None and own.state in FINAL))


def listed(runs: Sequence[Run]) -> dict[Path, Listed] | None:
    """The runs that Slurm lists, asked in one question for each cluster; None: it does not answer."""
    found: dict[Path, Listed] = {}
    for cluster in sorted({run.record.cluster for run in runs}, key=str):
        jobs = {run.path: (run, job_of(run)) for run in runs if run.record.cluster == cluster}
        queue = squeue_all(cluster, {job.number for _, job in jobs.values()})
        if queue is None:
            return None
        for path, (run, job) in jobs.items():
            if entry := queue.get(job.number):
                state = _state(run, run.status(), SlurmReply(entry.word, entry.reason))
                found[path] = Listed(state, entry.starts_ns, entry.ends_ns)
    return found


def _state(run: Run, status: Status | None, reply: SlurmReply) -> PolledState:
    found = _told(job_of(run), reply, status) if reply.word else _no_reply(reply, status)
    if found.state == "failed" and status is not None and status.state == "running":
        from harness.run.ended import end_of  # here: a dry run reads no run

        end = end_of(run, None)  # what writes its end was killed
        found = found._replace(state=end.state, why=end.note or "; ".join(filter(None, [found.why, end.why])))
    if plain(reply.word) == "OUT_OF_MEMORY" and " on its host" not in found.why:
        from harness.heartbeats.out_of_memory import said_of_fullest

        found = found._replace(why=found.why + said_of_fullest(run.path))
    return _in_allocation(found, status) if shares_allocation(run) else found


def _ask(job: JobId, has_ended: bool) -> SlurmReply:
    """has_ended: the job itself says so; accounts that have it as running then lag behind."""
    queue = squeue(job, "%T|%r")
    if queue.text:
        word, _, reason = queue.text.partition("|")
        return SlurmReply(word, reason)
    shown = scontrol(job)
    fields = fields_of(shown.text)
    if "JobState" in fields:
        return SlurmReply(fields["JobState"], fields.get("Reason", ""))
    return _by_accounts(job, queue.replied and shown.replied, queue.silent or shown.silent, has_ended)


def _by_accounts(job: JobId, forgotten: bool, silent: bool, has_ended: bool) -> SlurmReply:
    """What the accounts say of a job that the controller has forgotten, or did not answer for."""
    accounts = sacct(job)
    if accounts.text and meaning_of(accounts.text, job.number).state in FINAL:
        return SlurmReply(accounts.text)
    if accounts.text and not (forgotten or has_ended):
        return SlurmReply(accounts.text, gap="Slurm's controller does not answer, and its accounts lag behind")
    if not forgotten:
        return SlurmReply(
            gap="Slurm does not answer" if silent else "Slurm's commands do not answer here", silent=silent
        )
    if accounts.silent:
        return SlurmReply(gap="Slurm's controller has forgotten the job, and its accounts do not answer", silent=True)
    return SlurmReply(gap=f"Slurm does not know job {job.number} any more", forgotten=True)


def _told(job: JobId, reply: SlurmReply, status: Status | None) -> PolledState:
    """The state by Slurm's word, or the job's own, which is more precise where it ended before Slurm stopped it."""
    if status is not None and status.is_settled and status.told_by == plain(reply.word):
        return PolledState(status.state, status.why, told_by=status.told_by)  # it was written down
    means = meaning_of(reply.word, job.number)
    ended = (
        status if status is not None and status.is_own_word and status.state in FINAL else None
    )  # as it wrote itself
    if ended and ended.state in ("timeout", "cancelled", "stuck") and means.state in ("failed", "completed"):
        return PolledState(ended.state, told_by=ITSELF)
    if ended and ended.state == "stuck" and means.state in FINAL:
        # A node that was lost, or a cancellation, came while it ended.
        return PolledState("stuck", told_by=ITSELF)
    if ended and (ended.state, means.state) == ("completed", "node_fail"):
        return PolledState("completed", WENT_ON)
    if means.state not in FINAL:
        # Of an array's tasks that wait as one, `None,JobHeldUser`: without the words for nothing.
        waits = ", ".join(each for each in reply.reason.split(",") if each not in NO_REASON)
        return means._replace(why=means.why or (waits if means.state == "queued" else "") or reply.gap)
    why = means.why or ("" if ended else _how_it_ended(means, reply, status))
    if ended and ended.state == means.state == "failed" and why:
        # Which rank was killed for memory, and that Slurm saw it too.
        why = "; ".join(filter(None, [ended.why, why]))
    return PolledState(means.state, why, told_by=None if ended and ended.is_settled else plain(reply.word))


def _how_it_ended(means: PolledState, reply: SlurmReply, status: Status | None) -> str:
    """Of a job that did not write its end."""
    if status is None or (status.started_ns is None and status.told_by):
        never = means.state == "failed" and reply.reason not in NO_REASON
        unseen = f": {_UNSEEN}" * (reply.reason == "JobLaunchFailure")
        return f"it never started: Slurm says {reply.reason}{unseen}" if never else status.why if status else ""
    if means.state in ("failed", "timeout"):
        return f"it was ended before it could write its exit status; Slurm says {plain(reply.word)}"
    return ""


def _no_reply(reply: SlurmReply, status: Status | None) -> PolledState:
    """The job's own word, if Slurm says nothing. A job that only said it had begun may have ended since."""
    if status is not None and status.told_by is not None:
        return PolledState(status.state, status.why)
    if status is not None and status.state in FINAL:
        last = f"{reply.gap}; the last state that the job wrote: {status.state}" if reply.silent else ""
        return PolledState(status.state, last, told_by=ITSELF if reply.forgotten else None)
    last = "the job has written nothing yet" if status is None else f"the last state that the job wrote: {status.state}"
    return PolledState("unknown", f"{reply.gap}; {last}", silent=reply.silent)


def _in_allocation(state: PolledState, status: Status | None) -> PolledState:
    """One of several runs in an allocation: its own word, else what the allocation's state leaves it."""
    if status is not None and status.state in FINAL and status.is_own_word:
        return PolledState(status.state, told_by=ITSELF)
    if state.state == "running" and status is None:
        return PolledState("queued", "runs before it in the same allocation have not ended", ending=state.ending)
    if state.state == "completed":  # the allocation ended, and the run had not
        return state._replace(state="failed", why="its allocation ended before it")
    return state
