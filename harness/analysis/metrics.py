"""A summary as metrics by name: for compare, check, `--fail-if`, sweeps, lessons and docs/metrics.md.

A metric is one entry of METRICS; its unit is the end of its name (common/display/format.py). It is there only when the
summary has its numbers. Shares are of the window, averaged over devices by time; times are nanoseconds per step; calls,
bytes and times of collectives are per rank and step: their mean over the ranks that were read (in exercises 1 and 2 a
step is a micro-batch)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis import metric_values as values
from harness.analysis.metric_values import MEMORY_OF_PLAN, Facts, Metrics
from harness.analysis.process.host_calls import CAUSES
from harness.analysis.summary import CollectivePhase, Summary
from harness.analysis.summary.efficiency import POP_FACTORS
from harness.common.run_folder.job_parts import PARTS
from harness.traces.vocabulary import POINT_TO_POINT

Worse = Literal["more", "less"] | None  # None: neither more nor less of it is worse by itself

SLOWED = 1.15  # profiled steps over the others, from which losses are corrected, and the answer says it
OF_PROFILER = "findings.tiny-kernels"
IDLE_LABEL = "  idle: "
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", *POINT_TO_POINT)
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
_PARTS = ("data", "forward", "backward", "optimizer")
_ZERO = "In exercises 1 and 2, of one rank in one micro-batch."


@dataclass(frozen=True)
class Metric:
    """A number of a summary: its name, its row of docs/metrics.md, its line of a comparison (empty: `--json` only),
    whether more or less of it is worse, and its title in sweeps and plots (empty: its line, else its name)."""

    name: str
    value: Callable[[Facts], float | None]
    meaning: str
    label: str = ""
    worse: Worse = None
    title: str = ""


@dataclass(frozen=True)
class OfKind:
    """A number of the collectives of one kind: its name has `<kind>`; value: of their rows, and the number of steps of
    all ranks."""

    name: str
    value: Callable[[Sequence[CollectivePhase], int], float | None]
    meaning: str
    worse: Worse = "more"


def _word(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")


OF_KIND = (
    OfKind("<kind>_count", lambda rows, steps: sum(c.count for c in rows) / steps, "Calls of a rank in a step."),
    OfKind(
        "<kind>_bytes",
        values.sum_bytes,
        "Sum of the message sizes of a rank in a step. Absent if one was not recorded.",
    ),
    OfKind("<kind>_least_bytes", values.least_bytes, "Then the sum of those that were recorded."),
    OfKind("<kind>_ns", lambda rows, steps: sum(c.duration_ns for c in rows) / steps, "Time of a rank in a step."),
)
# What a reference keeps of a run, with the metrics of each kind of collective.
KEPT: tuple[Metric, ...] = (
    Metric(
        "step_ns",
        values.median_step_ns,
        "Median over steps of the mean over ranks, so that it is the job's step; without profiled steps of the "
        "training's own clock. Two marks of the same name are the same step; if names do not tell, steps are counted "
        "from the last one. `steps.duration` is the spread of all ranks' steps, and its median differs a little.",
        worse="more",
        title="step time",
    ),
    Metric("mean_step_ns", values.mean_step_ns, "The same with the mean over steps.", worse="more"),
    Metric(
        "step_on_core_ns",
        values.of_training("median_step_on_core_ns"),
        "Mean over ranks of `training.median_step_on_core_ns`: a step without the time in which its main thread was "
        "ready and had no core, as on a CPU that other programs use too.",
        worse="more",
    ),
    Metric("tokens_per_step", values.tokens, "Tokens of all ranks in a step."),
    Metric("step_ns_per_token", values.step_ns_per_token, "`step_ns` / `tokens_per_step`.", worse="more"),
    Metric(
        "tokens_per_s", values.of_part("efficiency", "tokens_per_s"), "`efficiency.tokens_per_s`.", "tokens/s", "less"
    ),
    Metric(
        "tokens_per_s_per_rank", values.speed_of_a_rank, "Tokens per second of the job over its ranks.", worse="less"
    ),
    Metric(
        "data_loading_share",
        values.of_training("data_fraction"),
        "Mean over ranks of `training.data_fraction`.",
        "data loading, share of step",
        "more",
    ),
    Metric("last_loss", values.of_training("last_loss"), "Mean over ranks of `training.last_loss`.", worse="more"),
    *(
        Metric(
            f"{part}_ns",
            values.of_training(f"median_{part}_ns"),
            f"Mean over ranks of `training.median_{part}_ns`.",
            worse="more",
        )
        for part in _PARTS
    ),
    Metric("kernels_per_step", values.kernels_per_step, "Σ `devices.kernels` / steps: those of a rank in a step."),
    Metric(
        "compute_share",
        values.share_of_window("compute_ns"),
        "Σ `compute_ns` / Σ `window_ns` of the devices.",
        "compute, share of window",
    ),
    Metric("communication_share", values.share_of_window("communication_ns"), "The same of `communication_ns`."),
    Metric(
        "exposed_communication_share",
        values.share_of_window("exposed_communication_ns"),
        "The same of `exposed_communication_ns`.",
        "exposed communication",
        "more",
    ),
    Metric(
        "memory_share",
        values.share_of_window("memory_ns"),
        "The same of `memory_ns`.",
        "memory copies and sets",
        "more",
    ),
    Metric("idle_share", values.share_of_window("idle_ns"), "The same of `idle_ns`.", "idle", "more"),
    *(
        Metric(
            f"idle_{_word(cause)}_share",
            values.idle_share(cause),
            f"Idle time with the cause `{cause}` / Σ `window_ns`.",
            f"{IDLE_LABEL}{cause}",
            "more",
        )
        for cause in CAUSES
    ),
    Metric(
        "overlap_fraction",
        values.overlap_fraction,
        "Σ `overlapped_communication_ns` / Σ `communication_ns` of the devices.",
        "communication overlapped",
        "less",
    ),
    Metric(
        "waiting_share_of_communication",
        values.waiting_in_steps,
        "Σ `waiting_ns` / Σ (`duration_ns` − `profiler_ns`) over all collectives. Those whose waiting is not known "
        "(sends, receives, groups that were not matched) are included; absent if none is known. The report's answer "
        "uses the same number.",
        "waiting, share of communication",
        "more",
    ),
    *(
        Metric(
            f"gemm_{precision}_share",
            values.gemm_share(precision),
            f"Time of the kind `gemm` in {precision} / time of the kind `gemm`.",
            f"{precision}, share of GEMM time",
        )
        for precision in _PRECISIONS
    ),
    Metric(
        "bubble",
        values.of_part("pipeline", "mean_bubble_fraction"),
        "`pipeline.mean_bubble_fraction`.",
        "pipeline bubble",
        "more",
    ),
    Metric(
        "expected_bubble",
        values.of_part("pipeline", "expected_bubble_fraction"),
        "`pipeline.expected_bubble_fraction`.",
        "pipeline bubble, by theory",
    ),
    Metric("microbatches", values.of_part("pipeline", "microbatches"), "`pipeline.microbatches`."),
    Metric(
        "message_bytes",
        values.message_bytes,
        "Sizes of all collectives, sends and receives of one rank in one step. A lower bound if some are not known.",
    ),
    Metric(
        "bytes_across_nodes",
        values.bytes_across_nodes,
        "`message_bytes` of groups larger than a node. Absent on one node.",
        "sent in groups across nodes, per rank and step",
        "more",
    ),
    Metric(
        "expected_all_reduce_bytes",
        values.by_theory("expected_all_reduce_bytes"),
        f"{_ZERO} DDP all-reduces its float32 gradients once per optimizer step. Source: Rajbhandari et al., ZeRO, "
        "2020, section 7.",
        "all_reduce per rank and step, by theory",
    ),
    Metric(
        "expected_all_gather_bytes",
        values.by_theory("expected_all_gather_bytes"),
        f"{_ZERO} ZeRO-2 gathers the parameters once per step; ZeRO-3 gathers them in forward and again in backward. "
        "Sources: the same; hpZ: Wang et al., ZeRO++, 2023, section 3.",
        "all_gather per rank and step, by theory",
    ),
    Metric(
        "expected_reduce_scatter_bytes",
        values.by_theory("expected_reduce_scatter_bytes"),
        f"{_ZERO} ZeRO-3 reduces the gradients in every micro-batch. Source: the same.",
        "reduce_scatter per rank and step, by theory",
    ),
    Metric("parameter_bytes", values.parameter_bytes, "`training.parameters` × bytes of `training.dtype`."),
    Metric(
        "peak_memory_bytes",
        values.peak_memory_bytes,
        "Largest `peak_memory_bytes` of the trainings and devices.",
        "peak memory",
        "more",
    ),
    Metric(
        "expected_state_bytes",
        values.by_theory("expected_state_bytes"),
        "Parameters, gradients and optimizer of one rank: peak memory without activations and buffers. Source: "
        "Rajbhandari et al., section 3.",
        "  model state, by theory",
    ),
    Metric(
        "tensor_peak_bytes", values.tensor_peak_bytes, "Largest `memory.ranks.peak_bytes`.", "peak of tensors", "more"
    ),
    *(
        Metric(
            name,
            values.of_plan(name),
            f"`memory.peak.bytes` of {name.removesuffix('_bytes')}, as the [plan](#memory) counts.",
            f"  {name.removesuffix('_bytes')}",
            "more",
        )
        for name in MEMORY_OF_PLAN
    ),
    Metric(
        "pageable_copy_bytes",
        values.pageable_copy_bytes,
        "Σ `copies.bytes` to devices from pageable host memory. Absent if no copy to a device says its memory.",
    ),
    Metric(
        "energy_joules",
        values.energy_joules,
        "Σ `monitor.energy_joules`. Absent if one is not given.",
        "energy, J",
        "more",
    ),
    Metric("mfu", values.of_part("efficiency", "mfu"), "`efficiency.mfu`.", "MFU", "less"),
)
_OF_JOB_TIME = (
    Metric(
        "job_elapsed_ns",
        values.of_part("job_time", "elapsed_ns"),
        "`job_time.elapsed_ns`.",
        "the job's elapsed time",
        "more",
    ),
    Metric(
        "useful_share",
        values.of_part("job_time", "useful_share"),
        "`job_time.useful_share`.",
        "  steps, share of it",
        "less",
    ),
    *(
        Metric(
            f"job_{_word(part.removeprefix('job '))}_ns",
            values.part_of_job_time(part),
            f"`duration_ns` of the part `{part}` of `job_time.parts`; 0 if it has none.",
            f"  {part}",
            "more",
        )
        for part in PARTS
    ),
)
_OF_POP = tuple(
    Metric(factor.metric, values.of_part("pop", factor.field), f"`pop.{factor.field}`.", factor.indented("  "), "less")
    for factor in POP_FACTORS
)
# In the order of a comparison's lines and of docs/metrics.md.
METRICS: tuple[Metric, ...] = (*KEPT, *_OF_JOB_TIME, *_OF_POP)


def metrics_by_name(summary: Summary, kept_only: bool = False) -> Metrics:
    """Every metric of `summary`, in a fixed order. kept_only: those that a reference keeps."""
    facts = Facts(summary)
    every = [(metric.name, metric.value(facts)) for metric in (KEPT if kept_only else METRICS)]
    every[len(KEPT) : len(KEPT)] = _of_kinds(facts)
    return {name: float(value) for name, value in every if value is not None}


def _of_kinds(facts: Facts) -> Iterator[tuple[str, float | None]]:
    if not facts.stepped:
        return
    by_kind: dict[str, list[CollectivePhase]] = defaultdict(list)
    for row in facts.summary.collective_phases:
        by_kind[row.kind].append(row)
    for kind in dict.fromkeys([*COLLECTIVES, *by_kind]):
        for each in OF_KIND:
            yield each.name.replace("<kind>", _word(kind)), each.value(by_kind[kind], facts.stepped)


def worse_is(name: str) -> Worse:
    """Whether more or less of a metric is worse. None: neither, or there is no such metric."""
    declared: dict[str, Worse] = {metric.name: metric.worse for metric in METRICS}
    ends = {each.name.removeprefix("<kind>"): each.worse for each in OF_KIND}
    return declared[name] if name in declared else next((w for end, w in ends.items() if name.endswith(end)), None)


def judged_step_ns(metrics: Metrics) -> float | None:
    """The step time by which a run is compared with a reference: the mean step, since the median hides what slows only
    some of the steps."""
    return metrics.get("mean_step_ns", metrics.get("step_ns"))
