"""A summary as metrics by name: for compare, `--fail-if` and the lessons' answers.

A metric is there only when the summary has its numbers. Shares are of the window, averaged over devices by time; times
are nanoseconds per step; calls, bytes and times of collectives are per rank and step: their mean over the ranks that
were read (in exercises 1 and 2 a step is a micro-batch)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.expected import expected_metrics
from harness.analysis.process.host_calls import CAUSES
from harness.analysis.process.phases import TIMED
from harness.analysis.summary import CollectivePhase, MemoryMoment, RankTraining, Summary
from harness.traces.vocabulary import POINT_TO_POINT, dtype_bytes

Metrics = dict[str, float]

SLOWED = 1.15  # profiled steps over the others, from which losses are corrected, and the answer says it
OF_PROFILER = "findings.tiny-kernels"
IDLE_LABEL = "  idle: "
MEMORY_OF_PLAN = tuple(f"{name}_bytes" for name in ("weights", "gradients", "optimizer", "activations", "buffers"))
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class Number:
    """A metric that a table adds: its name, which ends with its unit, its line in compare, and its row in the docs."""

    name: str
    label: str
    value: Callable[[Summary], float | None]
    meaning: str


def _word(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")


# The lines of a comparison, in order. Metrics without a line are in --json only.
LABELS: dict[str, str] = {
    "tokens_per_s": "tokens/s",
    "data_loading_share": "data loading, share of step",
    "compute_share": "compute, share of window",
    "exposed_communication_share": "exposed communication",
    "memory_share": "memory copies and sets",
    "idle_share": "idle",
    **{f"idle_{_word(cause)}_share": f"{IDLE_LABEL}{cause}" for cause in CAUSES},
    "overlap_fraction": "communication overlapped",
    "waiting_share_of_communication": "waiting, share of communication",
    **{f"gemm_{precision}_share": f"{precision}, share of GEMM time" for precision in _PRECISIONS},
    "bubble": "pipeline bubble",
    "expected_bubble": "pipeline bubble, by theory",
    "bytes_across_nodes": "sent in groups across nodes, per rank and step",
    **{
        f"expected_{kind}_bytes": f"{kind} per rank and step, by theory"
        for kind in ("all_reduce", "all_gather", "reduce_scatter")
    },
    "peak_memory_bytes": "peak memory",
    "expected_state_bytes": "  model state, by theory",
    "tensor_peak_bytes": "peak of tensors",
    "weights_bytes": "  weights",
    "gradients_bytes": "  gradients",
    "optimizer_bytes": "  optimizer",
    "activations_bytes": "  activations",
    "buffers_bytes": "  buffers",
    "energy_joules": "energy, J",
    "mfu": "MFU",
}


_ZERO = "In exercises 1 and 2, of one rank in one micro-batch."
# The rows of docs/metrics.md; <kind> is that of a collective.
MEANINGS: dict[str, str] = {
    "step_ns": "Median over steps of the mean over ranks, so that it is the job's step; without profiled steps of the "
    "training's own clock. Two marks of the same name are the same step; if names do not tell, steps are counted from "
    "the last one. `steps.duration` is the spread of all ranks' steps, and its median differs a little.",
    "mean_step_ns": "The same with the mean over steps.",
    "step_on_core_ns": "Mean over ranks of `training.median_step_on_core_ns`: a step without the time in which its "
    "main thread was ready and had no core, as on a CPU that other programs use too.",
    "tokens_per_step": "Tokens of all ranks in a step.",
    "step_ns_per_token": "`step_ns` / `tokens_per_step`.",
    "tokens_per_s": "`efficiency.tokens_per_s`.",
    "tokens_per_s_per_rank": "Tokens per second of the job over its ranks.",
    "data_loading_share": "Mean over ranks of `training.data_fraction`.",
    "last_loss": "Mean over ranks of `training.last_loss`.",
    **{f"{part}_ns": f"Mean over ranks of `training.median_{part}_ns`." for part in TIMED},
    "compute_share": "Σ `compute_ns` / Σ `window_ns` of the devices.",
    "communication_share": "The same of `communication_ns`.",
    "exposed_communication_share": "The same of `exposed_communication_ns`.",
    "memory_share": "The same of `memory_ns`.",
    "idle_share": "The same of `idle_ns`.",
    **{f"idle_{_word(cause)}_share": f"Idle time with the cause `{cause}` / Σ `window_ns`." for cause in CAUSES},
    "overlap_fraction": "Σ `overlapped_communication_ns` / Σ `communication_ns` of the devices.",
    **{f"gemm_{p}_share": f"Time of the kind `gemm` in {p} / time of the kind `gemm`." for p in _PRECISIONS},
    "<kind>_count": "Calls of a rank in a step.",
    "<kind>_bytes": "Sum of the message sizes of a rank in a step. Absent if one was not recorded.",
    "<kind>_least_bytes": "Then the sum of those that were recorded.",
    "<kind>_ns": "Time of a rank in a step.",
    "message_bytes": "Sizes of all collectives, sends and receives of one rank in one step. A lower bound if some are "
    "not known.",
    "bytes_across_nodes": "`message_bytes` of groups larger than a node. Absent on one node.",
    "waiting_share_of_communication": "Σ `waiting_ns` / Σ (`duration_ns` − `profiler_ns`) over all collectives. Those "
    "whose waiting is not known (sends, receives, groups that were not matched) are included; absent if none is known. "
    "The report's answer uses the same number.",
    "bubble": "`pipeline.mean_bubble_fraction`.",
    "expected_bubble": "`pipeline.expected_bubble_fraction`.",
    "microbatches": "`pipeline.microbatches`.",
    "expected_all_reduce_bytes": f"{_ZERO} DDP all-reduces its float32 gradients once per optimizer step. Source: "
    "Rajbhandari et al., ZeRO, 2020, section 7.",
    "expected_all_gather_bytes": f"{_ZERO} ZeRO-2 gathers the parameters once per step; ZeRO-3 gathers them in forward "
    "and again in backward. Sources: the same; hpZ: Wang et al., ZeRO++, 2023, section 3.",
    "expected_reduce_scatter_bytes": f"{_ZERO} ZeRO-3 reduces the gradients in every micro-batch. Source: the same.",
    "peak_memory_bytes": "Largest `peak_memory_bytes` of the trainings and devices.",
    "expected_state_bytes": "Parameters, gradients and optimizer of one rank: peak memory without activations and "
    "buffers. Source: Rajbhandari et al., section 3.",
    "parameter_bytes": "`training.parameters` × bytes of `training.dtype`.",
    "tensor_peak_bytes": "Largest `memory.ranks.peak_bytes`.",
    **{
        name: f"`memory.peak.bytes` of {name.removesuffix('_bytes')}, as the [plan](#memory) counts."
        for name in MEMORY_OF_PLAN
    },
    "energy_joules": "Σ `monitor.energy_joules`. Absent if one is not given.",
    "mfu": "`efficiency.mfu`.",
}


def judged_step_ns(metrics: Metrics) -> float | None:
    """The step time by which a run is compared with a reference: the mean step, since the median hides what slows only
    some of the steps."""
    return metrics.get("mean_step_ns", metrics.get("step_ns"))


def metrics_by_name(summary: Summary, more: Sequence[Number] = ()) -> Metrics:
    """Every metric of `summary`, in a fixed order; `more` are the metrics that tables add."""
    found: Metrics = {}
    for part in (_steps, _shares, _precisions, _collectives, _pipeline, _resources, expected_metrics):
        found.update((name, float(value)) for name, value in part(summary) if value is not None)
    added = ((number.name, number.value(summary)) for number in more)
    return found | {name: float(value) for name, value in added if value is not None}


def step_durations_ns(summary: Summary) -> list[float]:
    """One duration per step: the mean over ranks of the profiled steps, else of the training's own clock.

    Ranks that recorded other steps may count other ones: steps with the same name are the same step. Where the names
    are not unique, the steps are matched from the last one backwards.
    """
    per_rank = [r.durations_ns for r in summary.steps.per_rank if r.durations_ns]
    if not per_rank:
        own = [t.step_durations_ns for t in summary.training if t.step_durations_ns]
        return [sum(step) / len(step) for step in zip(*own, strict=False)]
    shared = min(map(len, per_rank))
    steps = _by_name(summary, per_rank) or zip(*(d[-shared:] for d in per_rank), strict=True)
    return [sum(step) / len(step) for step in steps]


def _by_name(summary: Summary, per_rank: list[list[int]]) -> list[list[int]]:
    """Per step that all ranks counted, each rank's duration; empty where the names of the steps are not unique."""
    marks: dict[tuple[str, int | None, int | None], list[str]] = {}
    for d in summary.devices:  # of a process's devices the first: all have its steps
        if d.steps:
            marks.setdefault((d.source, d.pid, d.rank), [step.step for step in d.steps])
    if list(map(len, marks.values())) != list(map(len, per_rank)):
        return []
    named = [dict(zip(names, ns, strict=True)) for names, ns in zip(marks.values(), per_rank, strict=True)]
    if list(map(len, named)) != list(map(len, per_rank)):
        return []  # a name comes back, as where each epoch counts anew
    return [[n[name] for n in named] for name in named[0] if all(name in n for n in named)]


def tokens_per_step(summary: Summary) -> float | None:
    """Tokens of all ranks in one step; None where the training did not record them."""
    return sum(t.tokens / t.steps_counted for t in summary.training if t.tokens and t.steps_counted) or None


def samples_per_step(summary: Summary) -> float | None:
    """Samples of all ranks in one step; None where the training did not record them."""
    return sum(t.samples / t.steps_counted for t in summary.training if t.samples and t.steps_counted) or None


def _steps(summary: Summary) -> Iterator[tuple[str, float | None]]:
    durations = step_durations_ns(summary)
    step = median(durations) if durations else None
    tokens = tokens_per_step(summary)
    yield "step_ns", step
    yield "mean_step_ns", sum(durations) / len(durations) if durations else None
    yield "step_on_core_ns", _mean([t.median_step_on_core_ns for t in summary.training])
    yield "tokens_per_step", tokens
    yield "step_ns_per_token", step / tokens if step and tokens else None
    speed = summary.efficiency.tokens_per_s if summary.efficiency else None
    yield "tokens_per_s", speed
    yield "tokens_per_s_per_rank", speed / summary.world_size if speed and summary.world_size else None
    yield "data_loading_share", _mean([t.data_fraction for t in summary.training])
    yield "last_loss", _mean([t.last_loss for t in summary.training])
    for part in TIMED:
        yield f"{part}_ns", _mean([getattr(t, f"median_{part}_ns") for t in summary.training])


def _shares(summary: Summary) -> Iterator[tuple[str, float | None]]:
    window = sum(d.window_ns for d in summary.devices)
    for name in ("compute", "communication", "exposed_communication", "memory", "idle"):
        values = [getattr(d, f"{name}_ns") for d in summary.devices]
        complete = bool(window) and None not in values
        yield f"{name}_share", sum(values) / window if complete else None
    known = [d for d in summary.devices if d.communication_ns is not None]
    communication = _total([d.communication_ns for d in known]) if len(known) == len(summary.devices) else 0
    overlapped = _total([d.overlapped_communication_ns for d in known])
    yield "overlap_fraction", overlapped / communication if communication else None
    idle = {cause.cause: cause.duration_ns for cause in summary.idle_causes}
    complete = bool(idle and window) and all(d.idle_ns is not None for d in summary.devices)
    for cause in CAUSES if complete else ():
        yield f"idle_{_word(cause)}_share", idle.get(cause, 0) / window


def _precisions(summary: Summary) -> Iterator[tuple[str, float | None]]:
    """Share of GEMM time per precision."""
    gemms = [k for k in summary.kinds if k.kind == "gemm"]
    total = sum(k.duration_ns for k in gemms)
    for precision in _PRECISIONS if total else ():
        time = sum(k.duration_ns for k in gemms if k.precision == precision)
        yield f"gemm_{precision}_share", time / total


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", *POINT_TO_POINT)


def _collectives(summary: Summary) -> Iterator[tuple[str, float | None]]:
    steps = sum(len(r.durations_ns) for r in summary.steps.per_rank)  # of all ranks
    if not steps or not summary.collectives:
        return
    by_kind: dict[str, list[CollectivePhase]] = defaultdict(list)
    for row in summary.collective_phases:
        by_kind[row.kind].append(row)
    for kind in dict.fromkeys([*COLLECTIVES, *by_kind]):
        rows = by_kind[kind]
        yield f"{_word(kind)}_count", sum(c.count for c in rows) / steps
        unknown = any(c.bytes is None for c in rows)
        yield f"{_word(kind)}_bytes", None if unknown else _total([c.bytes for c in rows]) / steps
        least = sum(c.least_bytes if c.bytes is None else c.bytes for c in rows)
        yield f"{_word(kind)}_least_bytes", least / steps if unknown and least else None
        yield f"{_word(kind)}_ns", sum(c.duration_ns for c in rows) / steps
    known = [c.least_bytes if c.bytes is None else c.bytes for c in summary.collective_phases]
    yield "message_bytes", sum(known) / steps if any(known) else None
    ranks = _ranks_per_node(summary.training)
    if ranks:
        over_network = [c for c in summary.collectives if (c.group_size or 0) > ranks]
        # Of all ranks; of sends and receives `bytes` is that sum already.
        across = sum((c.bytes or 0) * (1 if c.kind in POINT_TO_POINT else c.ranks) for c in over_network)
        stepped = sum(bool(r.durations_ns) for r in summary.steps.per_rank) / len(summary.steps.per_rank)
        yield "bytes_across_nodes", across * stepped / steps
    yield "waiting_share_of_communication", waiting_share(summary)


def waiting_share(summary: Summary) -> float | None:
    """Waiting as a share of the time of all collectives, sends and receives, without what they wait for a profiler;
    None where no waiting was measured."""
    waiting = [c.waiting_ns for c in summary.collectives if c.waiting_ns is not None]
    duration = sum(c.duration_ns - c.profiler_ns for c in summary.collectives)
    return sum(waiting) / duration if duration and waiting else None


def _pipeline(summary: Summary) -> Iterator[tuple[str, float | None]]:
    if summary.pipeline is not None:
        yield "bubble", summary.pipeline.mean_bubble_fraction
        yield "expected_bubble", summary.pipeline.expected_bubble_fraction
        yield "microbatches", summary.pipeline.microbatches


def _resources(summary: Summary) -> Iterator[tuple[str, float | None]]:
    first = summary.training[0] if summary.training else None
    size = dtype_bytes(first.dtype or "") if first else 0
    yield "parameter_bytes", first.parameters * size if first and first.parameters and size else None
    if summary.efficiency is not None:
        yield "mfu", summary.efficiency.mfu
    peaks = [t.peak_memory_bytes for t in summary.training] + [d.peak_memory_bytes for d in summary.devices]
    yield "peak_memory_bytes", max(filter(None, peaks), default=None)
    if summary.memory is not None and summary.memory.peak is not None and summary.memory.failure is None:
        yield "tensor_peak_bytes", max(rank.peak_bytes for rank in summary.memory.ranks)
        yield from memory_by_plan(summary.memory.peak).items()
    energies = [m.energy_joules for m in summary.monitor]
    yield "energy_joules", _total(energies) if energies and None not in energies else None


def memory_by_plan(moment: MemoryMoment) -> dict[str, float]:
    """Bytes of a moment by the names of the plan, which has no temporaries of its own: it counts those of forward and
    backward with the activations, and those of the optimizer's step with the buffers."""
    held = dict(moment.bytes)
    joined = "buffers" if moment.range == "optimizer_step" else "activations"
    held[joined] = held.get(joined, 0) + held.get("temporary", 0)
    return {name: float(held.get(name.removesuffix("_bytes"), 0)) for name in MEMORY_OF_PLAN}


def _ranks_per_node(training: list[RankTraining]) -> int | None:
    nodes = Counter(rank.node for rank in training if rank.node is not None)
    return max(nodes.values()) if len(nodes) > 1 else None


def _mean(values: list[float | None] | list[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _total(values: list[float | None] | list[int | None]) -> float:
    return float(sum(v for v in values if v is not None))
