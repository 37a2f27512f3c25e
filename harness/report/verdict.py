"""The answer in two or three sentences: where a step's time goes, the largest avoidable part, what to try next.

Rules over a Summary, nothing else; each rule names its part, how much of the devices' time it is, and the change
that a run of ours can make by its own flags. A rule that does not apply says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap

from harness.analysis.summary import Stage, Summary, Verdict
from harness.report.next_command import Flags, command, in_lines
from harness.report.numbers import duration, percent

WIDTH = 116
NOTICEABLE = 0.03  # a smaller share is not worth a change
_UNEVEN = 1.5  # a bubble so many times the schedule's own comes from stages that take unequal time
_WAITING = 0.5  # share of a collective's time from which waiting, not transfer, is the matter


@dataclass(frozen=True)
class Avoidable:
    """A part of the time that need not be. `share` is of the devices' window."""

    what: str
    share: float
    why: str
    change: str
    flags: Flags | None = None  # of our command line; None: the change is in the reader's own program


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
    next_command = command(summary, top.flags) if top.flags else None
    return Answer(
        [*doubt, where, _largest(summary, top), f"Try next: {top.change}{':' if next_command else '.'}"],
        next_command,
    )


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
    parts = [
        (_share(s, "compute_ns"), "computing"),
        (_share(s, "exposed_communication_ns"), "communicating with nothing computed meanwhile"),
        (_share(s, "exposed_memory_ns"), "copying"),
        (_share(s, "idle_ns"), "idle"),
    ]
    told = [f"{percent(share)} {what}" for share, what in parts if share >= 0.001]
    devices = "process" if s.devices[0].device_kind == "cpu" else "device"
    many = f" (mean of {len(s.devices)} {devices}{'es' if devices == 'process' else 's'})"
    step = s.steps.duration
    start = (
        f"A step takes {duration(step.median_ns)}"
        if step
        else f"The window is {duration(total / len(s.devices))}"
    )
    return f"{start}: {', '.join(told)}{many if len(s.devices) > 1 else ''}."


def _where_by_metrics(s: Summary) -> str | None:
    known = [t for t in s.training if t.median_step_ns]
    if not known:
        return None
    slowest = max(known, key=lambda t: t.median_step_ns or 0)
    parts = [
        (slowest.median_data_ns, "loading data"),
        (slowest.median_forward_ns, "forward"),
        (slowest.median_backward_ns, "backward"),
        (slowest.median_optimizer_ns, "optimizer"),
    ]
    told = [f"{duration(ns)} {what}" for ns, what in parts if ns]
    return f"A step takes {duration(slowest.median_step_ns)} by the training's own clock: {', '.join(told)}."


def _nothing(s: Summary, found: list[Avoidable]) -> str:
    idle = _share(s, "idle_ns")
    rest = f", and {percent(idle)} idle for reasons that the trace does not show" if idle > NOTICEABLE else ""
    largest = f" The largest is {found[0].what}, {percent(found[0].share)}." if found else ""
    left = f"what is left is the kernels themselves{rest}.{largest}"
    return f"No part that a rule calls avoidable is above {percent(NOTICEABLE)}: {left}"


def _largest(s: Summary, top: Avoidable) -> str:
    step = s.steps.duration
    each = f", about {duration(top.share * step.median_ns)} a step" if step else ""
    return f"The largest avoidable part is {top.what}: {percent(top.share)} of the time{each}. {top.why}"


def _share(s: Summary, field: str) -> float:
    total = sum(d.window_ns for d in s.devices)
    return sum(getattr(d, field) or 0 for d in s.devices) / total if total else 0.0


def _idle(s: Summary, cause: str) -> float:
    total = sum(d.window_ns for d in s.devices)
    return sum(c.duration_ns for c in s.idle_causes if c.cause == cause) / total if total else 0.0


def _asked(s: Summary, field: str) -> bool:
    return bool((s.experiment or {}).get(field))


def _exercise(s: Summary) -> int | None:
    return (s.experiment or {}).get("exercise")


def _on_cpu(s: Summary) -> bool:
    return any(d.device_kind == "cpu" for d in s.devices)


def _micro_batch(s: Summary) -> int | None:
    return next((t.micro_batch_size for t in s.training if t.micro_batch_size), None)


def _data(s: Summary) -> Avoidable | None:
    share = _idle(s, "data loading")
    if not s.devices:
        share = max((t.data_fraction or 0.0 for t in s.training), default=0.0)
    if not share:
        return None
    what, why = "waiting for data", "The devices are idle while the training process fetches the next batch."
    if _asked(s, "slow_dataloading"):
        change = "let worker processes prepare the batches (the default)"
        return Avoidable(what, share, why, change, Flags(drop=("--slow-dataloading",)))
    change = (
        "more DataLoader workers, pinned memory and prefetching (num_workers, pin_memory, prefetch_factor)"
    )
    return Avoidable(what, share, why, change)


def _launch(s: Summary) -> Avoidable | None:
    share = _idle(s, "launch-bound")
    if not share:
        return None
    why = "The host issues kernels more slowly than the device runs them."
    if _on_cpu(s):
        why = "That is Python between operators: the kernels are too small to hide it."
    batch = _micro_batch(s)
    if batch is None:
        change = "larger batches, fused operators (torch.compile) or CUDA graphs"
        return Avoidable("launch-bound idle time", share, why, change)
    change = "twice the micro-batch, so that each launch brings more work"
    return Avoidable(
        "launch-bound idle time", share, why, change, Flags(put={"--micro-batch-size": str(2 * batch)})
    )


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
    return Avoidable(
        "synchronisation", share, why, "take the value out of the loop, or read it some steps later"
    )


def _communication(s: Summary) -> Avoidable | None:
    share = _share(s, "exposed_communication_ns") + _idle(s, "communication")
    if not share:
        return None
    waited = _waiting(s)
    what = "communication that nothing hides"
    if waited is not None and waited > _WAITING:
        what += f", {percent(waited)} of it waiting for the last rank"
    why, change, flags = _communication_change(s, waited)
    return Avoidable(what, share, why, change, flags)


def _waiting(s: Summary) -> float | None:
    """Share of the collectives' time spent waiting for other ranks; None where it was not measured."""
    measured = [c for c in s.collectives if c.waiting_ns is not None]
    total = sum(c.duration_ns for c in measured)
    return sum(c.waiting_ns or 0 for c in measured) / total if total else None


def _communication_change(s: Summary, waited: float | None) -> tuple[str, str, Flags | None]:
    exercise, asked = _exercise(s), s.experiment or {}
    if exercise == 2 and asked.get("overlap_comm") is False:
        return "Overlap is switched off.", "let ZeRO overlap it", Flags(drop=("--ds-no-overlap",))
    if exercise == 2 and asked.get("heavy_comm"):
        return (
            "The buckets were made small on purpose.",
            "the normal buckets",
            Flags(drop=("--ds-heavy-comm",)),
        )
    if waited is not None and waited > _WAITING and s.stragglers:
        rank = s.stragglers[0].rank
        why = f"Most often the others wait for rank {rank}."
        return why, f"see in the timeline what rank {rank} does before it arrives", None
    if exercise in (1, 2):
        return _accumulate(s)
    tp = asked.get("tp")
    if exercise == 3 and isinstance(tp, int) and tp > 1:
        change = "a smaller tensor-parallel group, if the memory allows"
        return (
            "Tensor parallelism exchanges activations in every layer.",
            change,
            Flags(put={"--tp": str(tp // 2)}),
        )
    change = "fewer, larger messages, or more work to hide them behind (micro-batch, overlap)"
    return "Devices wait for messages while they have nothing else to do.", change, None


def _accumulate(s: Summary) -> tuple[str, str, Flags | None]:
    """More micro-batches per exchange of gradients."""
    now = (
        next((t.gradient_accumulation_steps for t in s.training if t.gradient_accumulation_steps), None) or 1
    )
    why = "Gradients are exchanged after every micro-batch." if now == 1 else "Gradients are exchanged often."
    change = "exchange them less often, by accumulating gradients"
    return why, change, Flags(put={"--gradient-accumulation-steps": str(4 * now)})


def _memory(s: Summary) -> Avoidable | None:
    share = _share(s, "exposed_memory_ns")
    if not share:
        return None
    pageable = sum(c.pageable_ns for c in s.copies)
    change = "pin the host buffers (pin_memory=True) and copy with non_blocking=True" if pageable else (
        "copy on a stream of its own while kernels run (non_blocking=True, prefetching)"
    )  # fmt: skip
    return Avoidable("copies that nothing hides", share, "The device only moves memory meanwhile.", change)


def _bubble(s: Summary) -> Avoidable | None:
    p = s.pipeline
    if p is None:
        return None
    told = f"{p.stages} stages share {p.microbatches} micro-batches; the schedule alone leaves "
    told += f"{percent(p.expected_bubble_fraction)} empty"
    if p.mean_bubble_fraction > _UNEVEN * p.expected_bubble_fraction and p.per_stage:
        slow = max(p.per_stage, key=lambda x: x.schedule_busy_ns)
        why = f"{told}, the rest is waiting for stage {slow.stage}, which works {percent(_busy(slow))} of the time."
        change = f"give stage {slow.stage} fewer layers: the embedding and the loss weigh as well"
        return Avoidable("the pipeline's bubble", p.mean_bubble_fraction, why, change)
    batch = (s.experiment or {}).get("global_batch_size") or _global_batch(s)
    flags = Flags(put={"--global-batch-size": str(2 * batch)}) if batch else None
    return Avoidable(
        "the pipeline's bubble", p.mean_bubble_fraction, f"{told}.", "twice the micro-batches", flags
    )


def _busy(stage: Stage) -> float:
    return stage.schedule_busy_ns / max(stage.schedule_ns, 1)


def _global_batch(s: Summary) -> int | None:
    p, batch, size = s.pipeline, _micro_batch(s), s.world_size
    if p is None or batch is None or size is None:
        return None
    asked = s.experiment or {}
    parallel = p.stages * (asked.get("tp") or 1) * (asked.get("cp") or 1)
    return p.microbatches * batch * max(size // parallel, 1)


def _precision(s: Summary) -> Avoidable | None:
    """fp32 products on a GPU: at least half of their time goes away with 16 bits."""
    if _on_cpu(s) or not s.devices:
        return None
    total = sum(d.window_ns for d in s.devices)
    slow = sum(k.duration_ns for k in s.kinds if k.precision == "fp32") / 2
    flags = None
    if _exercise(s) in (1, 2, 3) and not _asked(s, "mixed_precision"):
        flags = Flags(put={"--mixed-precision": None}, drop=("--no-mixed-precision",))
    why = "Matrix products run in fp32; in bf16 they take half the time or less (the half is counted here)."
    return Avoidable("single precision", slow / total, why, "mixed precision (bf16)", flags) if slow else None


def _straggler(s: Summary) -> Avoidable | None:
    score, rank = s.steps.straggler_score, s.steps.slowest_rank
    if score is None or rank is None or score <= 1:
        return None
    why = f"Its step takes {score:.2f} × the median rank's, and the others wait for it."
    change = (
        f"see in the timeline what rank {rank} does more of, and whether its node differs (slurm.sh -e 0)"
    )
    return Avoidable(f"rank {rank} being slower", 1 - 1 / score, why, change)


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
