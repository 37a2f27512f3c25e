"""A plan as numbers with names, formulas and sources, by subject: what the terminal prints and a run keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from harness.experiment.exercises import Own
from harness.study.plan.formulas import in_round_numbers, memory_formulas
from harness.study.plan.plan import LaunchPlan, MemoryPlan, StepPlan
from harness.study.plan.quantity import Quantity, Section, ranged
from harness.study.plan.speed import bubble, flops_per_step
from harness.study.plan.traffic import NOMINAL, PlannedMessage
from harness.study.plan.workload import Workload
from harness.theory.communication import Group
from harness.theory.devices import TABLE
from harness.theory.flops import flops_per_token

NEEDS_A_MODEL = (
    "memory, step and messages are computed for a model that the harness knows, and not for a training of your own: "
    "slurm.sh run makes a run, and slurm.sh report measures them"
)


def sections_of(plan: LaunchPlan) -> list[Section]:
    """The plan's numbers, subject by subject."""
    w, memory, step = plan.workload, plan.memory, plan.step
    if w is None or memory is None or step is None:
        return [_cost(plan)]
    return [_memory(plan, w, memory), _work(w), _step(w, step), _communication(w, step), _cost(plan)]


def _memory(plan: LaunchPlan, w: Workload, memory: MemoryPlan) -> Section:
    parts = memory.peak.highest
    at_turn = parts is memory.peak.turn
    moment = "at the end of the forward pass" if at_turn else "in the optimizer's step"
    otherwise = memory.peak.step if at_turn else memory.peak.turn
    rows = [
        Quantity(
            f"{name}_bytes", name, held, "bytes", _at_moment(formula, held, getattr(otherwise, name)), source
        )
        for name, (formula, source) in memory_formulas(w).items()
        for held in [getattr(parts, name)]
    ]
    rows.append(Quantity("planned_memory_bytes", "total", parts.total, "bytes", f"the peak, {moment}"))
    measured = parts.total - (parts.framework if w.device == "cuda" else 0.0)
    of = "without the framework" if w.device == "cuda" else "with the framework"
    rows.append(Quantity("peak_memory_bytes", "  peak memory, as measured", measured, "bytes", of))
    other = memory.other.highest
    label = f"  {'without' if w.checkpointing else 'with'} activation checkpointing"
    rows.append(
        Quantity("other_memory_bytes", label, other.total, "bytes", f"activations {_gb(other.activations)}")
    )
    if memory.capacity.total_bytes is not None:
        there, source = memory.capacity.total_bytes, memory.capacity.source
        rows.append(Quantity("memory_of_rank_bytes", "available", there, "bytes", "", source))
    return Section(f"Memory of each {_device(w)}: {memory.verdict}", rows, _memory_notes(plan, w, memory))


def _at_moment(formula: str, now: float, otherwise: float) -> str:
    """The formula of a part; with a remark if the part is not there at the peak."""
    return f"{formula} = {_gb(otherwise)}, but not at the peak" if otherwise and not now else formula


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _device(w: Workload) -> str:
    return "GPU" if w.device == "cuda" else "process"


def _memory_notes(plan: LaunchPlan, w: Workload, memory: MemoryPlan) -> list[str]:
    notes = []
    if memory.capacity.total_bytes is None:
        notes.append(f"whether it fits is not known: {memory.capacity.source}")
    if memory.nearest is not None:
        notes.append(f"the nearest setting that {memory.nearest.verdict}: {memory.nearest.command}")
    elif memory.verdict == "does not fit":
        notes.append("no tried setting fits: take a smaller model or more nodes")
    if w.sharding is not None and w.bf16:
        notes.append(in_round_numbers(w))
    if w.model.num_local_experts > 1:
        notes.append("a mixture of experts: its activations assume that all experts get as many tokens")
    return notes


def _per_weight(w: Workload) -> str:
    frozen = "4 · frozen weights that multiply a token + 6 · adapters"
    return "6 · weights that multiply a token" if w.lora is None else frozen


def _work(w: Workload) -> Section:
    per_token = flops_per_token(w.model, w.seq_length, w.lora)
    rows = [
        Quantity(
            "tokens_per_step", "tokens per step, all ranks", w.tokens_per_step, "tokens", _tokens_formula(w)
        ),
        Quantity(
            "flops_per_token",
            "FLOPs per token",
            per_token.total,
            "FLOP",
            f"{_per_weight(w)} + 12·L·h·S",
            f"PaLM, 2022, appendix B; {per_token.over_rule:.3f} × 6N",
        ),
        Quantity(
            "flops_per_step",
            "FLOPs per step, all ranks",
            flops_per_step(w),
            "FLOP",
            "tokens · FLOPs per token",
        ),
    ]
    if w.layout.pp > 1:
        v = f"{w.layout.vpp}·" if w.layout.vpp > 1 else ""
        formula = f"(p−1)/({v}m+p−1), p = {w.layout.pp}, m = {w.micro_batches}"
        rows.append(
            Quantity("bubble", "pipeline bubble", bubble(w), "share", formula, "Narayanan et al., SC 2021")
        )
    return Section("Work", rows, [])


def _tokens_formula(w: Workload) -> str:
    m = f" · {w.micro_batches_per_step} micro-batches" if w.micro_batches_per_step > 1 else ""
    return f"{w.micro_batch} · {w.seq_length}{m} · {w.layout.dp} replicas"


def _step(w: Workload, step: StepPlan) -> Section:
    title = "Step" if w.sharding is None or w.micro_batches == 1 else "Step (one micro-batch)"
    if isinstance(step.speed, str) or step.step_ns is None or step.compute_ns is None:
        return Section(title, [], [f"the time of a step is not known: {step.speed}"])
    low, high = step.step_ns
    formula = "FLOPs / (devices · peak · MFU)"
    rows = [ranged("step_ns", "expected step", (low, high), "ns", formula=formula, source=step.speed.source)]
    if step.speed.peak:
        shares = (step.speed.low / step.speed.peak, step.speed.high / step.speed.peak)
        rows.append(ranged("mfu", "  at an MFU of", shares, "share", source=step.speed.source))
    tokens = (1e9 * w.tokens_per_step / high, 1e9 * w.tokens_per_step / low)
    rows.append(ranged("tokens_per_s", "tokens per second", tokens, "tokens/s", formula="tokens / step"))
    return Section(title, rows, [])


def _communication(w: Workload, step: StepPlan) -> Section:
    rows = [*_bytes(w, step.sent)]
    notes = []
    if not step.sent:
        return Section("Communication", [], ["a single rank sends nothing"])
    unknown = sorted({_where(each.across) for each in step.sent if each.time_ns is None})
    if unknown:
        notes.append(
            f"times {' and '.join(unknown)} are not known: the site names no rate (network.link_*_gbps), and no run of "
            "exercise 0 there has measured one (slurm.sh -e 0)"
        )
    if step.exposed is not None:
        whole, least = step.exposed.total_ns, step.exposed.least_ns
        source = step.sent[0].source
        rows.append(
            Quantity(
                "communication_ns", "time of all messages", whole, "ns", _formula_of_time(source), source
            )
        )
        rows.append(Quantity("least_exposed_ns", "  exposed at best", least, "ns", _hiding(step)))
    return Section("Communication of one rank in a step", rows, notes)


def _formula_of_time(source: str) -> str:
    return "bytes · bus factor / rate, no latency" if source == NOMINAL else "α + β·bytes"


def _hiding(step: StepPlan) -> str:
    if not any(each.traffic.hides for each in step.sent):
        return "nothing overlaps: at worst the same"
    return "the rest overlaps with forward and backward computation; at worst all is exposed"


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
        formula = _where(each.across)
        yield Quantity(
            f"sent_{number}_bytes", label, t.message_bytes, "bytes", formula, "ideal: each byte is sent once"
        )
    for kind, total in sums.items():
        if kind != "send_recv":
            yield Quantity(
                f"{kind}_bytes",
                f"{kind}, total",
                total,
                "bytes",
                "larger of input and output, as in nccl-tests",
            )


def _cost(plan: LaunchPlan) -> Section:
    cost = plan.cost
    rows = []
    w = plan.workload
    if w is not None and cost.expected_s is not None:
        formula, source = f"{w.steps} steps and a start", f"the start: {cost.start_source}"
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
            Quantity(
                "most_energy_kwh", "energy, at most", energy, "kWh", "GPUs · TDP · the longer time", source
            )
        )
    notes = [] if cost.gpus else ["no GPU is used: no GPU hours"]
    notes += [NEEDS_A_MODEL] * isinstance(plan.job.experiment, Own)
    return Section("Cost", rows, notes)
