"""The answer in two or three sentences: where a step's time goes, the largest avoidable part, what to try next.

Rules over a Summary, nothing else; each rule names its part, how much of the devices' time it is, and the change
that a run of ours can make by its own flags. A rule that does not apply says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from harness.analysis.expected import resolved
from harness.analysis.facts import waiting_share
from harness.analysis.steps import by_rhythm
from harness.analysis.summary import Pipeline, Stage, Summary, Training, Verdict
from harness.report import known
from harness.report.next_command import Fields, command, in_lines, is_ours
from harness.report.numbers import duration, percent
from harness.theory.memory import state_bytes
from harness.theory.peaks import peak_flops_per_s

WIDTH = 116
NOTICEABLE = 0.03  # a smaller share is not worth a change
PAGEABLE_NOTICEABLE = 0.005  # of the devices' time in pageable copies, from which pinning is worth a word
_UNEVEN = 1.5  # a bubble so many times the schedule's own comes from stages that take unequal time
_ROOM = 0.9  # of a device's memory that may be filled
_DDP, _DEEPSPEED, _MEGATRON = 1, 2, 3
_WAITING = 0.5  # share of the collectives' time from which waiting, not transfer, is the matter


@dataclass(frozen=True)
class Change:
    """Something to try. `fields`: of the experiment; None: the change is in the reader's own program."""

    text: str
    fields: Fields | None = None


@dataclass(frozen=True)
class Avoidable:
    """A part of the time that need not be. `share` is of the devices' window; `changes`, the better first."""

    what: str
    share: float
    why: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Answer:
    """`sentences` to read, `command` to paste (None: there is none to give)."""

    sentences: list[str]
    command: str | None = None


def verdict(summary: Summary) -> Answer:
    """Where the time goes and what to do about it. Never guesses: without devices and metrics it says so."""
    doubt = _doubt(summary)
    where = _where(summary)
    if where is None:
        return Answer([*doubt, "Nothing was recorded that tells where the time went."])
    found = sorted(avoidable(summary), key=lambda a: -a.share)
    if not found or found[0].share < NOTICEABLE:
        return Answer([*doubt, where, _nothing(summary, found)])
    top = found[0]
    change, next_command = _first_possible(summary, top.changes)
    ending = [f"Try next: {change.text}{':' if next_command else '.'}"] if change else []
    return Answer([*doubt, where, _largest(summary, top), *ending], next_command)


def _first_possible(summary: Summary, changes: tuple[Change, ...]) -> tuple[Change | None, str | None]:
    """The first change that a run of ours can make, with its command; a stranger's trace is told the first."""
    for change in changes:
        if change.fields is None or not is_ours(summary):
            return change, None
        if (text := command(summary, change.fields)) is not None:
            return change, text
    return None, None


def lines(summary: Summary) -> list[str]:
    """The answer as a block of the terminal's report."""
    answer = verdict(summary)
    text = [line for sentence in answer.sentences for line in wrap(sentence, WIDTH)]
    return text + (in_lines(answer.command, WIDTH) if answer.command else [])


def avoidable(summary: Summary) -> list[Avoidable]:
    """Every rule's finding, in no order."""
    return [found for rule in _RULES if (found := rule(summary)) is not None]


def _doubt(s: Summary) -> list[str]:
    if s.quality.verdict is not Verdict.UNUSABLE:
        return []
    reason = next((f for f in s.quality.findings if f.severity is Verdict.UNUSABLE), None)
    return [f"Do not build on these numbers: {reason.what} ({reason.evidence})." if reason else ""]


def _where(s: Summary) -> str | None:
    total = sum(d.window_ns for d in s.devices)
    if not total:
        return _where_by_metrics(s)
    told = [text for part in _PARTS if (text := _part(s, *part))]
    step = s.steps.duration
    start = f"The window is {duration(total / len(s.devices))}"
    if step:
        start = f"{'One repetition' if _by_rhythm(s) else 'A step'} takes {duration(step.median_ns)}"
        start += " (found by rhythm; it may be a layer, not a training step)" if _by_rhythm(s) else ""
    return f"{start}: {', '.join(told)}{_of_how_many(s)}."


_PARTS = (
    ("compute_ns", "computing", "computation"),
    ("exposed_communication_ns", "communicating with nothing computed meanwhile", "communication"),
    ("exposed_memory_ns", "copying", "copying"),
    ("idle_ns", "idle", "idle time"),
)


def _part(s: Summary, field: str, doing: str, noun: str) -> str:
    """One part of the window in words; nothing where there is next to none of it."""
    share = known.share(s.devices, field)
    if share is None:
        return f"{noun} not known"
    return f"{percent(share)} {doing}" if share >= 0.001 else ""


def _of_how_many(s: Summary) -> str:
    """Of which devices the shares are the mean, where there are several."""
    every = len(s.devices)
    if every < 2:
        return ""
    of_each = {noun: len(known.that_know(s.devices, field)) for field, _, noun in _PARTS}
    partly = [f"; {noun} known of {count}" for noun, count in of_each.items() if 0 < count < every]
    devices = "processes" if s.devices[0].device_kind == "cpu" else "devices"
    return f" (mean of {every} {devices}{''.join(partly)})"


def _where_by_metrics(s: Summary) -> str | None:
    slowest = _slowest(s)
    if slowest is None:
        return None
    parts = [
        (slowest.median_data_ns, "loading data"),
        (slowest.median_forward_ns, "forward"),
        (slowest.median_backward_ns, "backward"),
        (slowest.median_optimizer_ns, "optimizer"),
    ]
    told = [f"{duration(ns)} {what}" for ns, what in parts if ns]
    return f"A step takes {duration(slowest.median_step_ns)} by the training's own clock: {', '.join(told)}."


def _slowest(s: Summary) -> Training | None:
    """The rank with the longest step by the training's own clock."""
    timed = [t for t in s.training if t.median_step_ns]
    return max(timed, key=lambda t: t.median_step_ns or 0, default=None)


def _nothing(s: Summary, found: list[Avoidable]) -> str:
    idle = known.share(s.devices, "idle_ns") or 0.0
    rest = f", and {percent(idle)} idle for reasons that the trace does not show" if idle > NOTICEABLE else ""
    unknown = [noun for field, _, noun in _PARTS if s.devices and known.share(s.devices, field) is None]
    rest += f", and {' and '.join(unknown)}, of which nothing is known" if unknown else ""
    largest = f" The largest is {found[0].what}, {percent(found[0].share)}." if found else ""
    left = f"what is left is the kernels themselves{rest}.{largest}"
    return f"No part that a rule calls avoidable is above {percent(NOTICEABLE)}: {left}"


def _largest(s: Summary, top: Avoidable) -> str:
    step = s.steps.duration
    each = f", about {duration(top.share * step.median_ns)} a {_unit(s)}" if step else ""
    return f"The largest avoidable part is {top.what}: {percent(top.share)} of the time{each}. {top.why}"


def _by_rhythm(s: Summary) -> bool:
    """Whether nothing in the program said what a step is."""
    return by_rhythm(s.steps.source)


def _unit(s: Summary) -> str:
    return "repetition" if _by_rhythm(s) else "step"


def _idle(s: Summary, cause: str) -> float | None:
    """Of the window, over the devices whose idle time is known; None where it is of none."""
    total = sum(d.window_ns for d in known.that_know(s.devices, "idle_ns"))
    return sum(c.duration_ns for c in s.idle_causes if c.cause == cause) / total if total else None


def _exercise(s: Summary) -> int | None:
    return (s.experiment or {}).get("exercise")


def _on_cpu(s: Summary) -> bool:
    return any(d.device_kind == "cpu" for d in s.devices)


def _micro_batch(s: Summary) -> int | None:
    return next((t.micro_batch_size for t in s.training if t.micro_batch_size), None)


def _data(s: Summary) -> Avoidable | None:
    share = _idle(s, "data loading")
    if share is None:
        share = _data_by_metrics(s)
    if not share:
        return None
    what, why = "waiting for data", "The devices are idle while the training process fetches the next batch."
    change = Change(
        "more DataLoader workers, pinned memory and prefetching (num_workers, pin_memory, prefetch_factor)"
    )
    if resolved(s).get("slow_dataloading"):
        change = Change("let worker processes prepare the batches (the default)", {"slow_dataloading": False})
    return Avoidable(what, share, why, (change,))


def _data_by_metrics(s: Summary) -> float:
    """Of the step that `_where_by_metrics` tells about."""
    slowest = _slowest(s)
    return (
        (slowest.median_data_ns or 0) / slowest.median_step_ns if slowest and slowest.median_step_ns else 0.0
    )


def _launch(s: Summary) -> Avoidable | None:
    share = _idle(s, "launch-bound")
    if not share:
        return None
    what, why = "launch-bound idle time", "The host issues kernels more slowly than the device runs them."
    if _on_cpu(s):
        what, why = "time between operators", "That is Python: the operators are too small to hide it."
    changes = (
        *_more_work(s, "twice the micro-batch, so that each launch brings more work"),
        Change("larger batches, fused operators (torch.compile) or CUDA graphs"),
    )
    return Avoidable(what, share, why, changes)


def _more_work(s: Summary, text: str) -> tuple[Change, ...]:
    """Twice the micro-batch, where it is known; with Megatron the batch too, or there were fewer micro-batches."""
    batch, exercise = _micro_batch(s), _exercise(s)
    if batch is None:
        return ()
    fields = {"micro_batch_size": 2 * batch}
    if exercise == _MEGATRON:
        whole = resolved(s).get("global_batch_size") or _global_batch(s)
        fields |= {"global_batch_size": 2 * whole} if whole else {}
    return (Change(text, fields),)


def _synchronisation(s: Summary) -> Avoidable | None:
    share = _idle(s, "synchronisation")
    gap = max(
        (g for d in s.devices for g in d.longest_gaps if g.cause == "synchronisation"),
        key=lambda g: g.duration_ns,
        default=None,
    )
    if not share:
        return None
    where = f" The longest such gap is inside {gap.range}." if gap is not None and gap.range else ""
    why = f"The host waits for the device (.item(), a blocking copy, a synchronize) and launches nothing.{where}"
    change = Change("take the value out of the loop, or read it some steps later")
    return Avoidable("synchronisation", share, why, (change,))


def _communication(s: Summary) -> Avoidable | None:
    exposed = known.share(s.devices, "exposed_communication_ns")
    share = None if exposed is None else exposed + (_idle(s, "communication") or 0.0)
    if not share:
        return None
    waited = waiting_share(s)
    what = "communication that nothing hides"
    if waited is not None and waited > _WAITING:
        what += f", {percent(waited)} of it waiting for the last rank"
    return Avoidable(what, share, *_communication_changes(s, waited))


def _communication_changes(s: Summary, waited: float | None) -> tuple[str, tuple[Change, ...]]:
    """Why communication is exposed, and what to do about it: first what was switched off, then who is late."""
    exercise, said = _exercise(s), resolved(s)
    if exercise == _DEEPSPEED and said.get("overlap_comm") is False:
        return "Overlap is switched off.", (Change("let ZeRO overlap it", {"overlap_comm": True}),)
    if exercise == _DEEPSPEED and said.get("heavy_comm"):
        why = "The buckets were made large on purpose: messages come few and late."
        return why, (Change("the normal buckets", {"heavy_comm": False}),)
    if waited is not None and waited > _WAITING and s.stragglers:
        rank = s.stragglers[0].rank
        why = f"Most often the others wait for rank {rank}."
        return why, (Change(f"see in the timeline what rank {rank} does before it arrives"),)
    by_exercise = {_DDP: _accumulate, _DEEPSPEED: _shard_less, _MEGATRON: _split_less}
    return by_exercise[exercise](s) if exercise in by_exercise else (_IDLE_LINKS, (_FEWER_MESSAGES,))


_IDLE_LINKS = "Devices wait for messages while they have nothing else to do."
_FEWER_MESSAGES = Change("fewer, larger messages, or more work to hide them behind (micro-batch, overlap)")


def _accumulate(s: Summary) -> tuple[str, tuple[Change, ...]]:
    """DDP: more micro-batches per exchange of gradients."""
    now = (
        next((t.gradient_accumulation_steps for t in s.training if t.gradient_accumulation_steps), None) or 1
    )
    why = "Gradients are exchanged after every micro-batch." if now == 1 else "Gradients are exchanged often."
    change = "exchange them less often, by accumulating gradients"
    return why, (Change(change, {"gradient_accumulation_steps": 4 * now}),)


def _shard_less(s: Summary) -> tuple[str, tuple[Change, ...]]:
    """ZeRO: accumulation saves nothing, since no rank can keep whole gradients; larger or nearer messages do."""
    said = resolved(s)
    stage, hpz, per_node = (said.get(name) for name in ("zero_stage", "hpz_partition", "gpus_per_node"))
    what = "Gradients are reduced" if stage == 2 else "Parameters are gathered and gradients reduced"
    changes: list[Change] = []
    if stage == 3 and (said.get("nodes") or 1) > 1 and hpz and per_node and hpz > per_node:
        changes.append(Change("keep a copy of the parameters inside each node", {"hpz_partition": per_node}))
    if _stage_2_fits(s):
        text = "ZeRO-2, since whole parameters fit into this memory and need not be gathered then"
        changes.append(Change(text, {"zero_stage": 2, "hpz_partition": None}))
    changes += _more_work(s, "twice the micro-batch, so that the same messages serve more computation")
    return f"{what} in every micro-batch, whatever is accumulated.", (*changes, _FEWER_MESSAGES)


def _stage_2_fits(s: Summary) -> bool:
    """Whether what ZeRO-2 holds beyond ZeRO-3 would fit beside the peak that was measured. False: not known."""
    first = s.training[0] if s.training else None
    room = min((m.memory_total_bytes for m in s.monitor if m.memory_total_bytes), default=0)
    peak = max((t.peak_memory_bytes or 0 for t in s.training), default=0)
    if resolved(s).get("zero_stage") != 3 or first is None or not (first.parameters and peak and room):
        return False
    bf16, ranks = bool(resolved(s).get("mixed_precision")), first.world_size or len(s.training)
    held = [state_bytes(first.parameters, ranks, sharding=z, bf16=bf16).total for z in ("zero2", "zero3")]
    return peak + held[0] - held[1] < _ROOM * room


def _split_less(s: Summary) -> tuple[str, tuple[Change, ...]]:
    """Megatron: fewer ranks share a layer."""
    tp = resolved(s).get("tp")
    if not isinstance(tp, int) or tp < 2:
        return _IDLE_LINKS, (_FEWER_MESSAGES,)
    why = "Tensor parallelism exchanges activations in every layer."
    smaller = Change(
        "a smaller tensor-parallel group, if the memory allows", {"tp": tp // 2 if tp % 2 == 0 else 1}
    )
    interleaved = (resolved(s).get("vpp") or 1) > 1  # its micro-batches must stay a multiple of the stages
    return why, (*(() if interleaved else (smaller,)), _FEWER_MESSAGES)


def _memory(s: Summary) -> Avoidable | None:
    share = known.share(s.devices, "exposed_memory_ns")
    if not share:
        return None
    window = sum(d.window_ns for d in s.devices)
    pageable = sum(c.pageable_ns for c in s.copies if c.direction == "copy H2D")
    text = "pin the host buffers (pin_memory=True) and copy with non_blocking=True"
    if pageable <= PAGEABLE_NOTICEABLE * window:  # the few bytes of an .item() are no reason to pin
        text = "copy on a stream of its own while kernels run (non_blocking=True, prefetching)"
    what, why = "copies that nothing hides", "The device only moves memory meanwhile."
    return Avoidable(what, share, why, (Change(text),))


def _bubble(s: Summary) -> Avoidable | None:
    p = s.pipeline
    if p is None:
        return None
    told, expected = _of_the_schedule(p), p.expected_bubble_fraction
    share = _of_the_window(p.per_stage)
    if expected is not None and p.mean_bubble_fraction > _UNEVEN * expected and p.per_stage:
        slow = max(p.per_stage, key=lambda x: x.schedule_busy_ns)
        why = f"{told}; the rest is waiting for stage {slow.stage}, which works {percent(_busy(slow))} of it."
        change = Change(f"give stage {slow.stage} fewer layers: the embedding and the loss weigh as well")
        return Avoidable("the pipeline's bubble", share, why, (change,))
    batch = resolved(s).get("global_batch_size") or _global_batch(s)
    change = Change("twice the micro-batches", {"global_batch_size": 2 * batch} if batch else None)
    return Avoidable("the pipeline's bubble", share, f"{told}.", (change,))


def _of_the_schedule(p: Pipeline) -> str:
    """How much of the schedule is empty, and how much of that theory expects where all stages are known."""
    measured = f"It is {percent(p.mean_bubble_fraction)} of the schedule"
    if p.expected_bubble_fraction is None:
        return f"{measured}; how much of it has to be is not known, since stages may be missing"
    alone = f"which alone leaves {percent(p.expected_bubble_fraction)} empty"
    return f"{measured}: {p.stages} stages share {p.microbatches} micro-batches, {alone}"


def _of_the_window(stages: Sequence[Stage]) -> float:
    """The stages' bubble in their whole time, of which the schedule is a part: the optimizer is in no schedule."""
    empty = sum(stage.schedule_ns - stage.schedule_busy_ns for stage in stages)
    return empty / max(sum(stage.window_ns for stage in stages), 1)


def _busy(stage: Stage) -> float:
    return stage.schedule_busy_ns / max(stage.schedule_ns, 1)


def _global_batch(s: Summary) -> int | None:
    p, batch, size = s.pipeline, _micro_batch(s), s.world_size
    if p is None or p.stages is None or batch is None or size is None:
        return None
    said = resolved(s)
    parallel = p.stages * (said.get("tp") or 1) * (said.get("cp") or 1)
    return p.microbatches * batch * max(size // parallel, 1)


def _precision(s: Summary) -> Avoidable | None:
    """fp32 products on a GPU: at least half of their time goes away with 16 bits."""
    total = sum(d.window_ns for d in s.devices)
    slow = sum(k.duration_ns for k in s.kinds if k.precision == "fp32") / 2
    if _on_cpu(s) or not slow or not total:
        return None
    half = "fp16" if _without_bf16(s) else "bf16"
    why = (
        f"Matrix products run in fp32; in {half} they take half the time or less (the half is counted here)."
    )
    ours = is_ours(s) and half == "bf16" and not resolved(s).get("mixed_precision")
    text = "mixed precision (bf16)" if half == "bf16" else "mixed precision: fp16, with loss scaling"
    change = Change(text, {"mixed_precision": True} if ours else None)
    return Avoidable("single precision", slow / total, why, (change,))


def _without_bf16(s: Summary) -> bool:
    """Whether a device is known to compute in fp16 but not in bf16, as before Ampere."""
    names = {d.name for d in s.devices if d.name}
    return any(peak_flops_per_s(n, "fp16") and not peak_flops_per_s(n, "bf16") for n in names)


def _straggler(s: Summary) -> Avoidable | None:
    score, rank = s.steps.straggler_score, s.steps.slowest_rank
    if score is None or rank is None or score <= 1:
        return None
    why = f"Its step takes {score:.2f} × the median rank's, and the others wait for it."
    change = Change(
        f"see in the timeline what rank {rank} does more of, and whether its node differs (slurm.sh -e 0)"
    )
    return Avoidable(f"rank {rank} being slower", 1 - 1 / score, why, (change,))


_RULES: tuple[Callable[[Summary], Avoidable | None], ...] = (
    _data,
    _launch,
    _synchronisation,
    _communication,
    _memory,
    _bubble,
    _precision,
    _straggler,
)
