"""Sentences about a job's slowdown: the cause, what else counts, and what to try."""

from __future__ import annotations

from collections.abc import Callable

from harness.common.format import duration, percent
from stragglers.result import JobSlowdown, StageSlowdown, WorkerSlowdown

_TOGETHER = 0.7  # a correlation of forward and backward from which a micro-batch's own length is the reason
_ALSO = 0.1  # of the loss, from which a second cause is told
_MOST_NAMED = 4
_MANY = 0.01  # of a recorded step, from which the delays between operations are told
_SHOWN = 1.01  # a smaller slowdown of an operation is not named
_ON_ONE_WORKER = ("gc", "optimizer", "optimizer-step")
_HALF = 0.5  # of a slowdown, which the worst worker has beyond the next


def straggler_sentences(s: JobSlowdown) -> list[str]:
    if s.cause == "none":
        return [
            f"No stragglers that count: the job is {s.slowdown:.3f} times as slow as without any, "
            f"{duration(max(s.step_ns - s.ideal_step_ns, 0))} of a step of {duration(s.step_ns)}."
        ]
    lost = (
        f"The job is {s.slowdown:.3f} times as slow as without stragglers: {duration(s.step_ns - s.ideal_step_ns)} of "
        f"a step of {duration(s.step_ns)}."
    )
    return [f"{lost} {_CAUSES[s.cause](s)}"]


def further_sentences(s: JobSlowdown) -> list[str]:
    """What is worth knowing after the answer: a second cause, and the delays that are not stragglers."""
    also = [f"Also: {name} ({percent(share)} of the loss)." for name, share in _others(s) if share >= _ALSO][:2]
    delays = s.recorded_step_ns - s.step_ns
    if delays >= _MANY * s.recorded_step_ns:
        also.append(
            f"A recorded step takes {duration(s.recorded_step_ns)}: {duration(delays)} of it passes between "
            "operations, before the next one is launched, which is not counted here."
        )
    return also


def _stages(s: JobSlowdown) -> str:
    worst = next((stage for stage in s.stages if stage.stage == s.worst_stage), s.stages[0])
    alone = "" if s.dp_size > 1 else " With one data-parallel rank, a slow device looks the same."
    passes = ", ".join(_times(s, worst))
    return (
        f"Stage {worst.stage} has more work than the others{_by_operation(s)}: {passes} the mean of the other stages. "
        f"With even stages {_share(s)} of the loss would go.{alone}"
    )


def _times(s: JobSlowdown, worst: StageSlowdown) -> list[str]:
    """Forward and backward of a stage beside the mean of the others."""
    found = []
    for name in ("forward", "backward"):
        own, *others = (getattr(stage, f"{name}_ns") for stage in (worst, *(x for x in s.stages if x is not worst)))
        if own and (known := [ns for ns in others if ns]):
            found.append(f"its {name} takes {own * len(known) / sum(known):.2f} times")
    return found


def _workers(s: JobSlowdown) -> str:
    named = s.slow_workers[:_MOST_NAMED] or s.workers[:1]
    more = len(s.slow_workers) - len(named)
    who = ", ".join(map(worker_name, named)) + (f" and {more} more" if more > 0 else "")
    verb = "takes" if len(s.slow_workers) < 2 else "take"
    by = f"{percent(named[0].slower)} " if named and named[0].slower else ""
    up_to = "up to " if len(named) > 1 and by else ""
    there = "the others of the same stage" if len(named) < 2 else "the others of their stages"
    return f"{who} {verb} {up_to}{by}more time than {there}. With even workers {_share(s)} of the loss would go."


def worker_name(worker: WorkerSlowdown) -> str:
    return f"Rank {worker.rank} (stage {worker.stage}, data-parallel rank {worker.dp_rank})"


def _micro_batches(s: JobSlowdown) -> str:
    together = s.forward_backward_correlation
    if together is not None and together >= _TOGETHER:
        why = (
            "Micro-batches differ in work: their forward and backward are long together (correlation "
            f"{together:.2f}), on no fixed rank and stage, so their sequences differ in length"
        )
    else:
        said = "" if together is None else f" (correlation {together:.2f})"
        why = (
            "Single passes are long, now on one rank and now on another, and not forward and backward of the same "
            f"micro-batch{said}: something on the hosts interrupts them"
        )
    return f"{why}{_by_operation(s)}. With even micro-batches {_share(s)} of the loss would go."


def _operation(s: JobSlowdown) -> str:
    name = s.cause_operation or ""
    slow = s.by_operation.get(name, 1.0)
    what = "operation" if name in _ON_ONE_WORKER else "communication"
    first, *others = (worker.slowdown - 1 for worker in s.workers)
    alone = others and first > 0 and others[0] < _HALF * first
    where = f", most of all of {worker_name(s.workers[0]).lower()}" if alone else ""
    would = f"With an even {name} {_share(s)} of the loss would go."
    return f"One {what} is slow at times: {name} (S {slow:.3f}){where}. {would}"


_CAUSES: dict[str, Callable[[JobSlowdown], str]] = {
    "stages": _stages,
    "workers": _workers,
    "micro-batches": _micro_batches,
    "operation": _operation,
    "several": lambda s: f"No single cause has a quarter of the loss{_by_operation(s)}.",
}


def advice(s: JobSlowdown) -> str:
    if s.cause == "stages":
        beside = ", or move layers from it to other stages"
        if s.worst_stage == s.pp_size - 1:
            beside = " (it also computes the loss; in Megatron --decoder-last-pipeline-num-layers)"
        return f"give stage {s.worst_stage} fewer layers{beside}"
    if s.cause == "workers":
        return (
            "test the device and the node (clock, temperature, power limit, other processes), or leave the node out "
            "(sbatch --exclude)"
        )
    if s.cause == "micro-batches":
        return (
            "give every micro-batch and data-parallel rank about the same work: pack sequences by the sum of their "
            "squared lengths"
            if (s.forward_backward_correlation or 0.0) >= _TOGETHER
            else "collect Python's garbage in the same step on all ranks (in Megatron --manual-gc), and look for other "
            "processes on the nodes"
        )
    if s.cause == "operation" and s.cause_operation in _ON_ONE_WORKER:
        return "look on its workers for what else runs then, and collect Python's garbage in the same step on all ranks"
    if s.cause == "operation":
        return "test the network between the ranks of that communication (link speed, errors, other jobs on it)"
    return "compare the stages and workers in the table of the slowdown"


def _share(s: JobSlowdown) -> str:
    return percent(min(s.cause_share or 0.0, 1.0))


def _by_operation(s: JobSlowdown) -> str:
    """The operations with most of the slowdown, in brackets."""
    named = [f"{name} {ratio:.2f}" for name, ratio in s.by_operation.items() if ratio >= _SHOWN][:2]
    return f" ({', '.join(named)})" if named else ""


def _others(s: JobSlowdown) -> list[tuple[str, float]]:
    """The causes beside the first one, the largest first."""
    if s.shares is None:
        return []
    found = {
        "stages": (f"stage {s.worst_stage} has most work", s.shares.stages),
        "workers": ("some workers are slower than the others of their stage", s.shares.workers),
        "micro-batches": ("micro-batches differ from each other", s.shares.micro_batches),
    }
    named = [own for cause, own in found.items() if cause != s.cause]
    of_passes = ("forward-compute", "backward-compute", s.cause_operation)
    named += [(f"{name} is slow at times", of) for name, of in s.shares.operations.items() if name not in of_passes]
    return sorted(named, key=lambda pair: -pair[1])
