"""Rules about communication that nothing hides: what was switched off, who is late, what sends less."""

from __future__ import annotations

from harness.analysis.expected import resolved
from harness.analysis.metrics import waiting_share
from harness.analysis.summary import Summary
from harness.explain.finding import (
    DDP,
    DEEPSPEED,
    MEGATRON,
    Avoidable,
    Change,
    exercise,
    idle_share,
    more_work,
    on_cpu,
)
from harness.explain.pipeline import in_schedule
from harness.format import known
from harness.format.format import percent
from harness.theory.memory import state_bytes

_WAITING = 0.5  # share of the collectives' time from which waiting, not transfer, is the matter
_ROOM = 0.9  # of a device's memory that may be filled


def communication(s: Summary) -> Avoidable | None:
    """Exposed communication, and idle time that waits for it. What lies in a pipeline's bubble is the bubble's."""
    exposed = known.share(s.devices, "exposed_communication_ns")
    if exposed is None:
        return None
    share = exposed + (idle_share(s, "communication") or 0.0) - in_schedule(s)
    if share <= 0:
        return None
    # Of a pipeline's waiting it is not known which part lies in the bubble.
    waited = waiting_share(s) if s.pipeline is None else None
    what = "communication that nothing hides" + (", beside the pipeline's waiting" if s.pipeline else "")
    if waited is not None and waited > _WAITING:
        what += f", {percent(waited)} of it waiting for the last rank"
    return Avoidable(what, share, *_communication_changes(s, waited))


def _communication_changes(s: Summary, waited: float | None) -> tuple[str, tuple[Change, ...]]:
    """Why communication is exposed, and what to do about it: first what was switched off, then who is late."""
    number, said = exercise(s), resolved(s)
    if number == DEEPSPEED and said.get("overlap_comm") is False and not on_cpu(s):
        return "Overlap is switched off.", (Change("let ZeRO overlap it", {"overlap_comm": True}),)
    if number == DEEPSPEED and said.get("heavy_comm"):
        why = "The buckets were made large on purpose: messages come few and late."
        return why, (Change("the normal buckets", {"heavy_comm": False}),)
    if waited is not None and waited > _WAITING and s.stragglers:
        rank = s.stragglers[0].rank
        why = f"Most often the others wait for rank {rank}."
        return why, (Change(f"see in the timeline what rank {rank} does before it arrives"),)
    by_exercise = {DDP: _accumulate, DEEPSPEED: _shard_less, MEGATRON: _split_less}
    return by_exercise[number](s) if number in by_exercise else (_IDLE_LINKS, (_FEWER_MESSAGES,))


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
    changes += more_work(s, "twice the micro-batch, so that the same messages serve more computation")
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
