"""The plan's numbers with their formulas and sources in words, and as a run keeps them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

from harness.common.display.text import how_many
from harness.common.paths import COMMAND
from harness.experiment.exercises import OwnTraining
from harness.plan.memory import FRAMEWORK_SOURCE, Workload
from harness.plan.plan import LaunchPlan, MemoryPlan, StepPlan
from harness.plan.speed import NOMINAL, START_SOURCE, PlannedMessage, bubble, flops_per_step
from harness.theory.communication import Group
from harness.theory.devices import TABLE
from harness.theory.flops import flops_per_token

STAGES = ("none", "zero1", "zero2", "zero3")
ZERO = "Rajbhandari et al., ZeRO, 2020, section 3"
KORTHIKANTI = "the method of Korthikanti et al., 2022"

GLOBAL_BATCH = "data parallelism, with ZeRO and FSDP too: each replica of the model has its own samples"

Formula = tuple[str, str]
NEEDS_A_MODEL = (
    "memory, step and messages are computed for a model that the harness knows, and not for a training of your own: "
    f"{COMMAND} run makes a run, and {COMMAND} report measures them"
)


def memory_formulas(w: Workload) -> dict[str, Formula]:
    """(formula, source) of each part, by the names of `Parts`."""
    batch = f"micro-batch {w.micro_batch} × {w.seq_length} tokens"
    library = "megatron-core" if w.sharding is None else "transformers"
    again = ", computed again in backward" if w.checkpointing else ""
    return {
        **(_megatron(w) if w.sharding is None else _replica(w)),
        "activations": (batch + again, f"{KORTHIKANTI}, for the layers of {library}"),
        "buffers": _buffers(w),
        "framework": ("", FRAMEWORK_SOURCE[w.device]),
    }


def _megatron(w: Workload) -> dict[str, Formula]:
    ranks = w.layout.dp * w.layout.cp
    return {
        "weights": (f"{_width(w)}·P", "P: this rank's parameters, by TP and PP"),
        "gradients": ("4·P", "summed in float32"),
        "optimizer": (f"{12 if w.bf16 else 8}·P/{ranks}", "over DP × CP ranks; Megatron-LM, dist_optimizer.md"),
    }


def _replica(w: Workload) -> dict[str, Formula]:
    if w.sharding == "fsdp":
        return _fsdp(w)
    stage = STAGES.index(w.sharding or "none")
    weights, gradients, optimizer = (f"/{w.ranks}" if stage >= least else "" for least in (3, 2, 1))
    copies = stage == 3 and w.hpz > 1
    copy = f" + {_width(w)}·N/{w.hpz}" if copies else ""
    width, n = 12 if stage or w.bf16 else 8, _trained(w)
    master = " and float32 weights" if width == 12 else ""
    kept = "; float32: fp8 is of the products alone" if w.precision == "fp8" else ""
    return {
        "weights": (
            f"{_width(w)}·N{weights}{copy}",
            f"N = {w.parameters:,}" + (", and hpZ's copy" if copies else "") + kept,
        ),
        "gradients": (f"{_width(w)}·{n}{gradients}", ZERO if stage else "float32, as the weights"),
        "optimizer": (f"{width}·{n}{optimizer}", f"AdamW's two moments{master}" + (f"; {ZERO}" if stage else "")),
    }


def _fsdp(w: Workload) -> dict[str, Formula]:
    shards = w.hpz if w.hpz > 1 else w.ranks
    return {
        "weights": (f"4·N/{shards}", f"N = {w.parameters:,}; float32, FSDP2"),
        "gradients": (f"4·{_trained(w)}/{shards}", "float32, as the weights"),
        "optimizer": (f"8·{_trained(w)}/{shards}", "AdamW's two moments"),
    }


def _trained(w: Workload) -> str:
    return "N" if w.trained is None else f"{w.trained:,}"


def _width(w: Workload) -> int:
    return 2 if w.bf16 else 4


def _buffers(w: Workload) -> Formula:
    if w.sharding is None:
        return "temporaries of AdamW", "PyTorch's code"
    if w.sharding == "fsdp":
        return (f"({2 * _width(w)} + 4)·U", "U: parameters of the largest unit, gathered twice, and its gradients")
    if w.buckets is None:
        return (f"4·{_trained(w)}" if w.ranks > 1 else "0"), "DDP's buckets hold a copy of the gradients"
    reduce = f"{_width(w)}·{w.buckets.reduce:.3g}"
    if w.sharding == "zero3":
        live = f"{_width(w)}·min(N, {w.buckets.live:.3g})"
        return f"{live} + {reduce}", "gathered layers and the reduction buffer; ds_config.json"
    twice = "2·" if w.buckets.overlap else ""
    return f"{twice}{reduce}", "reduction buffers, or copies of gradients in the step; ds_config.json"


def in_round_numbers(w: Workload) -> str:
    """The state as the workshop's slides count it."""
    billions = round(w.model.parameters() / 1e9) or 1
    parts = (2 * billions, 2 * billions, 12 * billions)
    return (
        f"in round numbers, {billions} billion parameters: {parts[0]} + {parts[1]} + {parts[2]} = {sum(parts)} GB of "
        f"weights, gradients and optimizer states; {sum(parts) / w.ranks:.4g} GB per rank, if all are sharded over "
        f"{w.ranks}"
    )


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number. value: for a range its geometric mean. formula: what was computed; source: where that is from."""

    name: str
    label: str
    value: float
    unit: str
    formula: str = ""
    source: str = ""
    low: float | None = None
    high: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that it has."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


def ranged(
    name: str, label: str, span: tuple[float, float], unit: str, *, formula: str = "", source: str = ""
) -> Quantity:
    """A number of which a range is known, from the lower end to the higher."""
    low, high = span
    return Quantity(name, label, sqrt(low * high), unit, formula, source, low, high)


@dataclass(frozen=True, slots=True)
class PlanSection:
    """Numbers of one subject. notes: sentences below them: what is not known, and why."""

    title: str
    rows: list[Quantity]
    notes: list[str]


def sections_of(plan: LaunchPlan) -> list[PlanSection]:
    """The plan's numbers, subject by subject."""
    w, memory, step = plan.workload, plan.memory, plan.step
    if w is None or memory is None or step is None:
        return [_cost(plan)]
    return [_memory(w, memory), _work(w), _step(w, step), _communication(w, step), _cost(plan)]


def _memory(w: Workload, host_memory: MemoryPlan) -> PlanSection:
    parts = host_memory.peak.highest
    at_turn = parts is host_memory.peak.turn
    moment = "at the end of the forward pass" if at_turn else "in the optimizer's step"
    otherwise = host_memory.peak.step if at_turn else host_memory.peak.turn
    rows = [
        Quantity(f"{name}_bytes", name, held, "bytes", _at_moment(formula, held, getattr(otherwise, name)), source)
        for name, (formula, source) in memory_formulas(w).items()
        for held in [getattr(parts, name)]
    ]
    rows.append(Quantity("planned_memory_bytes", "total", parts.total, "bytes", f"the peak, {moment}"))
    measured = parts.total - (parts.framework if w.device == "cuda" else 0.0)
    of = "without the framework" if w.device == "cuda" else "with the framework"
    rows.append(Quantity("peak_memory_bytes", "  peak memory, as measured", measured, "bytes", of))
    other = host_memory.other.highest
    label = f"  {'without' if w.checkpointing else 'with'} activation checkpointing"
    rows.append(Quantity("other_memory_bytes", label, other.total, "bytes", f"activations {_gb(other.activations)}"))
    if host_memory.capacity.total_bytes is not None:
        there, source = host_memory.capacity.total_bytes, host_memory.capacity.source
        rows.append(Quantity("memory_of_rank_bytes", "available", there, "bytes", "", source))
    return PlanSection(f"Memory of each {_device(w)}: {host_memory.verdict}", rows, _memory_notes(w, host_memory))


def _at_moment(formula: str, now: float, otherwise: float) -> str:
    """The formula of a part; with a remark if the part is not there at the peak."""
    return f"{formula} = {_gb(otherwise)}, but not at the peak" if otherwise and not now else formula


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _device(w: Workload) -> str:
    return "GPU" if w.device == "cuda" else "process"


def _memory_notes(w: Workload, memory: MemoryPlan) -> list[str]:
    notes = []
    if memory.capacity.total_bytes is None:
        notes.append(f"whether it fits is not known: {memory.capacity.source}")
    if memory.nearest is not None:
        notes.append(f"the nearest setting that {memory.nearest.verdict}: {memory.nearest.command}")
    elif memory.verdict == "does not fit":
        notes.append("no tried setting fits: take a smaller model or more nodes")
    if memory.usual:
        notes.append(memory.usual)
    if w.sharding is not None and w.bf16:
        notes.append(in_round_numbers(w))
    return notes


def _work(w: Workload) -> PlanSection:
    per_token = flops_per_token(w.model, w.seq_length, w.lora)
    frozen = "4 · frozen weights that multiply a token + 6 · adapters"
    per_weight = "6 · weights that multiply a token" if w.lora is None else frozen
    m = f" · {w.micro_batches_per_step} micro-batches" if w.micro_batches_per_step > 1 else ""
    tokens = f"{w.micro_batch} · {w.seq_length}{m} · {w.layout.dp} replicas"
    rows = [
        *_global_batch(w),
        Quantity("tokens_per_step", "tokens per step, all ranks", w.tokens_per_step, "tokens", tokens),
        Quantity(
            "flops_per_token",
            "FLOPs per token",
            per_token.total,
            "FLOP",
            f"{per_weight} + 12·L·h·S",
            f"PaLM, 2022, appendix B; {per_token.over_rule:.3f} × 6N",
        ),
        Quantity("flops_per_step", "FLOPs per step, all ranks", flops_per_step(w), "FLOP", "tokens · FLOPs per token"),
    ]
    if w.layout.pp > 1:
        v = f"{w.layout.vpp}·" if w.layout.vpp > 1 else ""
        formula = f"(p−1)/({v}m+p−1), p = {w.layout.pp}, m = {w.micro_batches}"
        rows.append(Quantity("bubble", "pipeline bubble", bubble(w), "share", formula, "Narayanan et al., SC 2021"))
    return PlanSection("Work", rows, [])


def batch_factors(w: Workload) -> str:
    """What is multiplied to the global batch of an optimizer step."""
    if w.sharding is None:
        size = w.layout
        shared = f"{how_many(w.ranks, 'rank')} / (TP {size.tp} · PP {size.pp} · CP {size.cp})"
        several = "micro-batch" if w.micro_batches == 1 else "micro-batches"
        return f"{how_many(size.dp, 'replica')} ({shared}) × {w.micro_batches:,} {several} of {w.micro_batch}"
    steps = how_many(w.micro_batches, "accumulation step")
    return f"{how_many(w.layout.dp, 'rank')} × {steps} × micro-batch {w.micro_batch}"


def _global_batch(w: Workload) -> Iterator[Quantity]:
    yield Quantity(
        "global_batch", "global batch of an optimizer step", w.global_batch, "samples", batch_factors(w), GLOBAL_BATCH
    )
    tokens = w.global_batch * w.seq_length
    formula = f"samples · {w.seq_length} tokens = {tokens:,}"
    yield Quantity("global_batch_tokens", "  its tokens", tokens, "tokens", formula)


def _step(w: Workload, step_plan: StepPlan) -> PlanSection:
    title = "Step" if w.sharding is None or w.micro_batches == 1 else "Step (one micro-batch)"
    if isinstance(step_plan.speed, str) or step_plan.step_ns is None or step_plan.compute_ns is None:
        return PlanSection(title, [], [f"the time of a step is not known: {step_plan.speed}"])
    low, high = step_plan.step_ns
    formula = "FLOPs / (devices · peak · MFU)"
    rows = [ranged("step_ns", "expected step", (low, high), "ns", formula=formula, source=step_plan.speed.source)]
    shares = (step_plan.speed.low / step_plan.speed.peak, step_plan.speed.high / step_plan.speed.peak)
    rows.append(ranged("mfu", "  at an MFU of", shares, "share", source=step_plan.speed.source))
    tokens = (1e9 * w.tokens_per_step / high, 1e9 * w.tokens_per_step / low)
    rows.append(ranged("tokens_per_s", "tokens per second", tokens, "tokens/s", formula="tokens / step"))
    return PlanSection(title, rows, [])


def _communication(w: Workload, step_plan: StepPlan) -> PlanSection:
    rows, notes = [*_bytes(w, step_plan.sent)], []
    if not step_plan.sent:
        return PlanSection("Communication", [], ["a single rank sends nothing"])
    unknown = sorted({_where(each.across) for each in step_plan.sent if each.time_ns is None})
    if unknown:
        notes.append(
            f"times {' and '.join(unknown)} are not known: the site names no rate (network.link_*_gbps): {COMMAND} "
            "-e 0 measures it"
        )
    if step_plan.exposed is not None:
        whole, least = step_plan.exposed.total_ns, step_plan.exposed.least_ns
        formula = "bytes · bus factor / rate, no latency"
        rows.append(Quantity("communication_ns", "time of all messages", whole, "ns", formula, NOMINAL))
        hiding = "nothing overlaps: at worst the same"
        if any(each.traffic.hides for each in step_plan.sent):
            hiding = "the rest overlaps with forward and backward computation; at worst all is exposed"
        rows.append(Quantity("least_exposed_ns", "  exposed at best", least, "ns", hiding))
    return PlanSection("Communication of one rank in a step", rows, notes)


def _where(across: bool) -> str:
    return "between nodes" if across else "inside a node"


def _group(w: Workload, group: Group) -> str:
    if group == "copy":
        return "ranks of a node" if w.sharding == "fsdp" else "hpZ ranks"
    return "ranks with the same shard" if group == "copies" else f"{group}-parallel ranks"


def _bytes(w: Workload, sent: list[PlannedMessage]) -> Iterator[Quantity]:
    """Each message's row, then the sums by collective that a report measures too."""
    sums: defaultdict[str, float] = defaultdict(float)
    for number, each in enumerate(sent):
        t = each.traffic
        sums[t.kind] += t.message_bytes
        label = f"{t.kind} in {t.part.replace('_', ' ')}, {t.group_size} {_group(w, t.group)}"
        formula = _where(each.across) + (f", {t.messages:.4g} messages" if t.messages else "")
        yield Quantity(
            f"sent_{number}_bytes", label, t.message_bytes, "bytes", formula, "ideal: each byte is sent once"
        )
    for kind, total in sums.items():
        if kind != "send_recv":
            yield Quantity(
                f"{kind}_bytes", f"{kind}, total", total, "bytes", "larger of input and output, as in nccl-tests"
            )


def _cost(plan: LaunchPlan) -> PlanSection:
    cost = plan.cost
    rows = []
    w = plan.workload
    if w is not None and cost.expected_s is not None:
        formula = f"{w.steps} steps and a start"
        source = f"the start: {START_SOURCE}"
        rows.append(ranged("job_s", "the whole job", cost.expected_s, "s", formula=formula, source=source))
    hours = cost.gpu_hours()
    if hours is not None:
        rows.append(ranged("gpu_hours", "GPU hours", hours, "GPU h", formula=f"{cost.gpus} GPUs · that time"))
    if cost.gpus:
        limit = f"{cost.gpus} GPUs · time limit {plan.job.site.time}"
        rows.append(Quantity("most_gpu_hours", "  at most", cost.most_gpu_hours, "GPU h", limit))
    energy = cost.most_kwh()
    if energy is not None:
        source = f"an upper bound: {cost.watts:g} W of each GPU, {TABLE}; without hosts and cooling"
        rows.append(
            Quantity("most_energy_kwh", "energy, at most", energy, "kWh", "GPUs · TDP · the longer time", source)
        )
    notes = [] if cost.gpus else ["no GPU is used: no GPU hours"]
    notes += [NEEDS_A_MODEL] * isinstance(plan.job.experiment, OwnTraining)
    notes += filter(None, [plan.conversion])
    return PlanSection("Cost", rows, notes)


def plan_document(plan: LaunchPlan) -> dict[str, Any]:
    """The document. Each number has its value or range, its unit, its formula and its source."""
    memory, sections = plan.memory, sections_of(plan)
    return {
        "schema_version": 1,
        "verdict": memory.verdict if memory else None,
        "fits_with": memory.nearest.command if memory and memory.nearest else None,
        "warnings": plan.warnings,
        "numbers": {row.name: row.as_json() for section in sections for row in section.rows},
        "notes": [note for section in sections for note in section.notes],
    }


def plan_text(plan: LaunchPlan) -> str:
    return json.dumps(plan_document(plan), indent=1, ensure_ascii=False) + "\n"
