"""Sentences about stragglers and about what transports a job's messages. Knows only the Summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from harness.analysis.labels import are_cpus
from harness.analysis.summary import Nccl, NcclConnection, Stragglers, StragglerStage, StragglerWorker, Summary
from harness.common.format import duration, percent
from harness.experiment.base import Experiment

_TOGETHER = 0.7  # a correlation of forward and backward from which a micro-batch's own length is the reason
_ALSO = 0.1  # of the loss, from which a second cause is told
_MOST_NAMED = 4
_MANY = 0.01  # of a recorded step, from which the delays between operations are told
_SHOWN = 1.01  # a smaller slowdown of an operation is not named
_ON_ONE_WORKER = ("gc", "optimizer", "optimizer-step")
_HALF = 0.5  # of a slowdown, which the worst worker has beyond the next
_SOCKETS = "NET/Socket"
_SWITCHED_OFF = ("NCCL_IB_DISABLE", "NCCL_IBEXT_DISABLE")
_INSIDE = {"P2P": "from GPU to GPU", "SHM": "through host memory", "NET": "over the network"}
_NEARER = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def straggler_sentences(s: Stragglers) -> list[str]:
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


def further_sentences(s: Stragglers) -> list[str]:
    """What is worth knowing after the answer: a second cause, and the delays that are not stragglers."""
    also = [f"Also: {name} ({percent(share)} of the loss)." for name, share in _others(s) if share >= _ALSO][:2]
    delays = s.recorded_step_ns - s.step_ns
    if delays >= _MANY * s.recorded_step_ns:
        also.append(
            f"A recorded step takes {duration(s.recorded_step_ns)}: {duration(delays)} of it passes between "
            "operations, before the next one is launched, which is not counted here."
        )
    return also


def _stages(s: Stragglers) -> str:
    worst = next((stage for stage in s.stages if stage.stage == s.worst_stage), s.stages[0])
    alone = "" if s.dp_size > 1 else " With one data-parallel rank, a slow device looks the same."
    passes = ", ".join(_times(s, worst))
    return (
        f"Stage {worst.stage} has more work than the others{_by_operation(s)}: {passes} the mean of the other stages. "
        f"With even stages {_share(s)} of the loss would go.{alone}"
    )


def _times(s: Stragglers, worst: StragglerStage) -> list[str]:
    """Forward and backward of a stage beside the mean of the others."""
    found = []
    for name in ("forward", "backward"):
        own, *others = (getattr(stage, f"{name}_ns") for stage in (worst, *(x for x in s.stages if x is not worst)))
        if own and (known := [ns for ns in others if ns]):
            found.append(f"its {name} takes {own * len(known) / sum(known):.2f} times")
    return found


def _workers(s: Stragglers) -> str:
    named = s.slow_workers[:_MOST_NAMED] or ([s.worst_worker] if s.worst_worker else [])
    more = len(s.slow_workers) - len(named)
    who = ", ".join(map(worker_name, named)) + (f" and {more} more" if more > 0 else "")
    verb = "takes" if len(s.slow_workers) < 2 else "take"
    by = f"{percent(named[0].slower)} " if named and named[0].slower else ""
    up_to = "up to " if len(named) > 1 and by else ""
    there = "the others of the same stage" if len(named) < 2 else "the others of their stages"
    return f"{who} {verb} {up_to}{by}more time than {there}. With even workers {_share(s)} of the loss would go."


def worker_name(worker: StragglerWorker) -> str:
    return f"Rank {worker.rank} (stage {worker.stage}, data-parallel rank {worker.dp_rank})"


def _micro_batches(s: Stragglers) -> str:
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


def _operation(s: Stragglers) -> str:
    name = s.cause_operation or ""
    slow = s.by_operation.get(name, 1.0)
    what = "operation" if name in _ON_ONE_WORKER else "communication"
    first, *others = (worker.slowdown - 1 for worker in s.workers)
    alone = others and first > 0 and others[0] < _HALF * first
    where = f", most of all of {worker_name(s.worst_worker).lower()}" if alone and s.worst_worker else ""
    would = f"With an even {name} {_share(s)} of the loss would go."
    return f"One {what} is slow at times: {name} (S {slow:.3f}){where}. {would}"


_CAUSES: dict[str, Callable[[Stragglers], str]] = {
    "stages": _stages,
    "workers": _workers,
    "micro-batches": _micro_batches,
    "operation": _operation,
    "several": lambda s: f"No single cause has a quarter of the loss{_by_operation(s)}.",
}


def advice(s: Stragglers) -> str:
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


def _share(s: Stragglers) -> str:
    return percent(min(s.cause_share or 0.0, 1.0))


def _by_operation(s: Stragglers) -> str:
    """The operations with most of the slowdown, in brackets."""
    named = [f"{name} {ratio:.2f}" for name, ratio in s.by_operation.items() if ratio >= _SHOWN][:2]
    return f" ({', '.join(named)})" if named else ""


def _others(s: Stragglers) -> list[tuple[str, float]]:
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


def why_unknown(s: Summary) -> str | None:
    """Why NCCL's log is missing; None if there is one, and for traces that are not of a run."""
    if s.nccl is not None or s.run is None:
        return None
    if s.backend == "gloo" or are_cpus(s.devices) or s.run.get("device") == "cpu":
        return "not given: this run on CPUs communicates with gloo, not NCCL"
    asked = s.experiment
    if isinstance(asked, Experiment) and asked.nccl_debug:
        return "not given: NCCL wrote no log, in spite of --nccl-debug"
    return "not given: NCCL writes a log only with --nccl-debug"


def between_nodes(n: Nccl) -> str | None:
    """The transport between nodes; None if no connection between nodes is known."""
    used = [row for row in n.connections if row.between_nodes]
    if not used:
        return None
    return "; ".join(_across(n, kind, used) for kind in _kinds(used))


def inside_a_node(n: Nccl) -> str | None:
    """The transport between a node's GPUs; None if no connection inside a node is known."""
    used = [row for row in n.connections if row.between_nodes is False]
    if not used:
        return None
    total = sum(row.count for row in used)
    parts = []
    for kind in _kinds(used):
        how = _INSIDE.get(kind.partition("/")[0], "")
        count = sum(row.count for row in used if row.transport == kind)
        share = f" on {count:,} of {total:,} connections" if count < total else ""
        parts.append(f"{how} ({kind}){share}" if how else f"{kind}{share}")
    told = _set(n, _NEARER)
    return "; ".join(parts) + (f": {told}" if told and set(_kinds(used)) - {"P2P/CUMEM", "P2P/IPC"} else "")


def _kinds(rows: Sequence[NcclConnection]) -> list[str]:
    """The transports, that of most connections first."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.transport] += row.count
    return [kind for kind, _ in counts.most_common()]


def _across(n: Nccl, kind: str, used: Sequence[NcclConnection]) -> str:
    rows = [row for row in used if row.transport == kind]
    if kind == _SOCKETS:
        return f"sockets ({kind}), not InfiniBand{_why_sockets(n)}"
    if not kind.startswith("NET/"):
        return kind
    total, direct = sum(row.count for row in rows), sum(row.count for row in rows if row.gdrdma)
    way = "without GPUDirect RDMA"
    if direct:
        way = "with GPUDirect RDMA" + (f" on {direct:,} of {total:,} connections" if direct < total else "")
    told = _set(n, _SWITCHED_OFF)
    return f"{_word(n, kind)} ({kind}) {way}" + (f", although {told}" if told and "/IB" in kind else "")


def _word(n: Nccl, kind: str) -> str:
    name = kind.removeprefix("NET/")
    devices = [device for row in n.networks if row.name == name for device in row.network_devices]
    if devices and all(device.endswith("(RoCE)") for device in devices):
        return "RoCE"
    return "InfiniBand" if name.startswith("IB") else name


def _why_sockets(n: Nccl) -> str:
    told = _set(n, _SWITCHED_OFF)
    if told:
        return f": {told}"
    chosen = next((v for v in n.variables if v.name == "NCCL_NET"), None)
    if chosen is not None:
        return f": NCCL_NET is set to {', '.join(chosen.values)}"
    return ": NCCL found no InfiniBand device" if n.without_infiniband else ""


def _set(n: Nccl, names: Sequence[str]) -> str:
    """Those of the variables that are set to something but 0, in words; empty where none is."""
    found = [v.name for v in n.variables if v.name in names and v.values != ["0"]]
    return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} set" if found else ""
