"""Why a finding costs time, and what to try. Knows the Summary, and no rule that found it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.analysis import device_time
from harness.analysis.labels import are_cpus
from harness.analysis.metric_values import waiting_share
from harness.analysis.process.phases import Phase
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Pipeline, PipelineStage, Summary, TimeLost
from harness.analysis.summary.problem_texts import CROWDED
from harness.common.display.format import Scale, duration_range, percent
from harness.common.paths import COMMAND
from harness.experiment.base import IDLE_FOR_DATA, Suggestion
from harness.explain.advice import advice
from harness.explain.commands import (
    COMPILED,
    asked_of,
    changed_experiment,
    is_ours,
    larger_micro_batch,
    measured,
    micro_batch,
    more_micro_batches,
    without_faults,
)
from harness.explain.copies import CopiedJob, copy_causes
from harness.explain.messages import advice_of, excess, if_transfer, least_waiting, named, why_not_split, why_single
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.device_causes import bubble_communication
from harness.replay.attribute.suspect import Cause
from harness.theory.devices import half_precision

_WAITING = 0.5  # share of the collectives' time from which waiting, not transfer, is the matter
_UNEVEN = 1.5  # times the expected bubble: from here the bubble has another cause beside the schedule
_MOSTLY = 0.5  # share of the unexpected bubble: from here unequal stages are the cause
_MOST_OF_IT = 0.7  # of the exposed communication
_FEWER_RANKS = "start no more ranks than there are cores (-n, -g)"
_WORTH_SAYING = 0.005  # of the time


_RECORDS_THE_HOST = {
    "kineto": "torch.profiler.profile(with_stack=True)",
    "nsys": "nsys profile --trace=cuda,nvtx,osrt --sample=process-tree --python-sampling=true",
}


class Reason(NamedTuple):
    """why: sentences, or nothing. changes: what to try, the best first. more: of the part's name. largest: what most of
    it is. consists: the same as a sentence of its own."""

    why: str
    changes: tuple[Suggestion, ...] = ()
    more: str = ""
    largest: str = ""
    consists: str = ""


def reason(s: Summary, time_lost: TimeLost, who: str, phase: str) -> Reason:
    """Why, and what to try: without what the run made slow, then what its exercise can do, then advice."""
    own = _REASONS.get(time_lost.cause, _plain)(s, time_lost)
    entry, changes = CAUSES.get(time_lost.cause), list[Suggestion]()
    if (fields := without_faults(s, (time_lost.cause,), time_lost.phase, time_lost.ranks)) is not None:
        changes.append(Suggestion(f"the same run without the injected fault {time_lost.cause}", fields))
    changes += own.changes
    if entry is None:
        return own._replace(changes=(*changes, Suggestion("find it in the timeline")))
    if entry.own_cores and any(doubt.what == CROWDED for doubt in s.quality.disturbances):
        return own._replace(changes=(*changes, Suggestion(_FEWER_RANKS)))
    return own._replace(changes=(*changes, Suggestion(advice(s, time_lost).format(phase=phase, who=who))))


def _plain(s: Summary, time_lost: TimeLost) -> Reason:
    entry = CAUSES.get(time_lost.cause)
    changes = list[Suggestion]()
    if entry and entry.purpose and (advice := asked_of(s).on_purpose(entry.purpose, measured(s))) is not None:
        changes += advice.changes
    if entry and entry.more_work and micro_batch(s) is not None:
        text = "twice the micro-batch, so that each operator has more work"
        changes.append(Suggestion(text, larger_micro_batch(s)))
    return Reason("", tuple(changes))


def _data(s: Summary, time_lost: TimeLost) -> Reason:
    return _plain(s, time_lost)._replace(why=IDLE_FOR_DATA if time_lost.basis == "share" else "")


def _host_stall(s: Summary, time_lost: TimeLost) -> Reason:
    """If nothing was recorded of the host, what would record it."""
    option = _records_the_host(s)
    if time_lost.what is not None or option is None:
        return Reason("")
    return Reason("What the host did there was not recorded.", (Suggestion(f"record what the host does: {option}"),))


def _records_the_host(s: Summary) -> str | None:
    """How the tool that made the traces records the host's Python; None: it cannot, or the host computes."""
    tool = next((source.tool for source in s.sources), "")
    return None if are_cpus(s.devices) else _RECORDS_THE_HOST.get(tool)


def _launch_bound(s: Summary, time_lost: TimeLost) -> Reason:
    own = _plain(s, time_lost)
    if time_lost.phase != Phase.OPTIMIZER.label and changed_experiment(s, COMPILED) is not None:
        compiled = Suggestion("compile the model, which fuses operators (torch.compile)", COMPILED)
        own = own._replace(changes=(*own.changes, compiled))
    if time_lost.phase == Phase.OPTIMIZER.label and not are_cpus(s.devices):
        fewer = Suggestion("an optimizer of few kernels: fused=True, or foreach=True (torch.optim)")
        own = own._replace(changes=(fewer, *own.changes))
    if time_lost.basis != "share":
        return own
    if are_cpus(s.devices):
        return own._replace(why="It is Python overhead: the operators are too small to hide it.")
    return own._replace(why="The host issues kernels more slowly than the device runs them.")


def _synchronisation(s: Summary, time_lost: TimeLost) -> Reason:
    gaps = (g for d in s.devices for g in d.longest_gaps if g.cause == "synchronisation")
    gap = max(gaps, key=lambda g: g.duration_ns, default=None)
    where = f" The longest such gap is inside {gap.range}." if gap is not None and gap.range else ""
    why = "The host waits for the device (.item(), a blocking copy, a synchronize) and launches nothing."
    if not where and not time_lost.lines and time_lost.where is None and (option := _records_the_host(s)) is not None:
        where = f" The line that waits was not recorded: {option} shows it."
    return Reason(f"{why}{where}")


def _communication(s: Summary, time_lost: TimeLost) -> Reason:
    return _exposed_communication(s, time_lost)._replace(consists=named(s))


def _of_messages(s: Summary, time_lost: TimeLost) -> Reason:
    return _plain(s, time_lost)._replace(consists=named(s))


def _exposed_communication(s: Summary, time_lost: TimeLost) -> Reason:
    """Why communication is exposed: a switched-off option, needless messages, a late rank, one message."""
    asked, seen = asked_of(s), measured(s)
    # In a pipeline some waiting lies in the bubble, and how much is not known.
    waited = waiting_share(s) if s.pipeline is None else None
    more = ", without the pipeline's waiting" if s.pipeline else ""
    if waited is not None and waited > _WAITING:
        of_it = f"{percent(waited)} of it waiting for the last rank"
        more += f", {of_it}" if time_lost.basis == "share" else ", without the waiting for the last rank"
    unsplit = why_not_split(s) or least_waiting(s)
    if (on_purpose := asked.on_purpose("communication", seen)) is not None:
        return Reason(*on_purpose, more=more)
    if (unneeded := excess(s)) is not None:
        return Reason(f"{unneeded.what} {unsplit}".strip(), (Suggestion(unneeded.advice),), more)
    if waited is not None and waited > _WAITING and s.stragglers:
        rank = s.stragglers[0].rank
        change = Suggestion(f"find in the timeline the work of rank {rank} before it arrives")
        return Reason(f"The others wait most often for rank {rank}.", (change,), more)
    why, changes = asked.send_less(seen)
    if time_lost.basis == "replay":
        why = _in_its_place(s, time_lost)
    if text := advice_of(s):
        why = " ".join(filter(None, (why_single(s), why)))
        changes = (*(change for change in changes if change.fields is not None), Suggestion(text + if_transfer(s)))
    return Reason(f"{why} {unsplit}".strip(), changes, more)


def _in_its_place(s: Summary, time_lost: TimeLost) -> str:
    """Of one rank alone: why a step gains less than its exposed communication; empty if it gains most of it."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    if exposed is None or time_lost.share >= _MOST_OF_IT * exposed or why_not_split(s) is None:
        return ""
    wait = "without it the device would have to wait for something else, such as the host."
    return f"It is exposed for {percent(exposed)} of the time, but {wait}"


def _copies(s: Summary, time_lost: TimeLost) -> Reason:
    unit = "period" if by_periodicity(s.steps.source) else "step"
    causes = copy_causes(s.copies, CopiedJob(s.devices, s.steps.counted, unit))
    if not causes:
        return Reason("The device computes nothing meanwhile." if time_lost.basis == "share" else "")
    most = causes[0]
    if time_lost.basis == "share":
        return Reason(most.why, (Suggestion(most.advice),), f" ({most.what})")
    return Reason(most.why, (Suggestion(most.advice),), largest=most.what)


def _precision(s: Summary, time_lost: TimeLost) -> Reason:
    half = next((half_precision(d.name) for d in s.devices if d.name), "bf16")
    now = _precisions(s)
    why = f"In {half} products in fp32 take half the time or less, those in tf32 two thirds: that is counted here."
    what_ifs = s.replay.what_ifs if s.replay else []
    best_ns = next((w.low_ns for w in what_ifs if w.name == "products-x2" and w.ranged), None)
    if s.replay is not None and best_ns is not None:
        less = duration_range(time_lost.lost_ns, s.replay.step_ns - best_ns)
        why = (
            f"With {half} a step takes {less} less. The smaller number counts products in fp32 as twice as fast and "
            "those in tf32 as 1.5 times; the larger one follows from the device's peaks, with half of the bytes for "
            "other kernels."
        )
    ours = is_ours(s) and half == "bf16" and not asked_of(s).in_bf16
    return Reason(why, (Suggestion(advice(s, time_lost), {"mixed_precision": True} if ours else None),), now)


def _precisions(s: Summary) -> str:
    """How long the products in each precision of 32 bits take: of a replayed step, else of the devices' time."""
    window_ns, step_ns = sum(d.window_ns for d in s.devices) or 1, s.replay.step_ns if s.replay else 0
    shares = {name: sum(k.duration_ns for k in s.kinds if k.precision == name) / window_ns for name in ("fp32", "tf32")}
    scale = Scale(step_ns) if step_ns else None
    said = [
        f"in {name} take {scale.text(share * step_ns) + ' ' + scale.unit if scale else percent(share)}"
        for name, share in shares.items()
        if share >= _WORTH_SAYING
    ]
    return f" (products {' and '.join(said)})" if said else ""


def _late_rank(s: Summary, time_lost: TimeLost) -> Reason:
    score, rank = s.steps.straggler_score, s.steps.slowest_rank
    if time_lost.basis == "replay" or score is None:
        return Reason("")
    why = f"Its step takes {score:.2f} × the median rank's, and the others wait for it."
    what = f"find the additional work of rank {rank} in the timeline, and test its node ({COMMAND} -e 0)"
    return Reason(why, (Suggestion(what),), f" {rank}")


def _slow_stage(p: Pipeline) -> PipelineStage | None:
    """The stage for which the others wait; None unless unequal stages explain most of the unexpected bubble."""
    expected = p.expected_bubble_fraction
    if expected is None or not p.per_stage or p.mean_bubble_fraction <= _UNEVEN * expected:
        return None
    slow = max(p.per_stage, key=lambda x: x.schedule_busy_ns)
    return slow if _by_inequality(p, slow) >= _MOSTLY * (p.mean_bubble_fraction - expected) else None


def _by_inequality(p: Pipeline, slow: PipelineStage) -> float:
    """The share of the schedule that is empty because stages take unequal time. With stages that work t on average and
    T at most, a schedule of m micro-batches is (m + p - 1) · T long and its stages work m · t."""
    mean_ns = sum(x.schedule_busy_ns for x in p.per_stage) / len(p.per_stage)
    return (1 - (p.expected_bubble_fraction or 0.0)) * (1 - mean_ns / max(slow.schedule_busy_ns, 1))


def _of_the_schedule(p: Pipeline) -> str:
    """The empty share of the schedule, and the share that theory expects where all stages are known."""
    measured = f"It is {percent(p.mean_bubble_fraction)} of the schedule"
    if p.expected_bubble_fraction is None:
        return f"{measured}; the expected bubble is not known, because stages may be missing"
    alone = f"and this schedule leaves {percent(p.expected_bubble_fraction)} empty"
    shared = f"{p.microbatches} micro-batch{'es' * (p.microbatches != 1)}"
    return f"{measured}: {p.stages} stages share {shared}, {alone}"


def _bubble(s: Summary, time_lost: TimeLost) -> Reason:
    """The time inside their schedules in which the stages do not work."""
    p = s.pipeline
    if p is None:
        return Reason("")
    slow, why = _slow_stage(p), _of_the_schedule(p)
    text = "more micro-batches: twice the global batch at the same micro-batch"
    change = Suggestion(text, more_micro_batches(s))
    if slow is not None:
        busy = slow.schedule_busy_ns / max(slow.schedule_ns, 1)
        why += f"; the rest is waiting for stage {slow.stage}, which works {percent(busy)} of that time"
        if _by_inequality(p, slow) >= (p.expected_bubble_fraction or 0.0):
            text = f"give stage {slow.stage} fewer layers: the embedding and the loss take time as well"
            change = Suggestion(text)
    share = bubble_communication(s)
    if share < _WORTH_SAYING:
        return Reason(f"{why}.", (change,))
    shown = f"A part of it, {percent(share)} of the time, is shown as communication: "
    return Reason(f"{why}. {shown}a stage waits in its messages for the work of another stage.", (change,))


_REASONS: dict[str, Callable[[Summary, TimeLost], Reason]] = {
    Cause.DATA_STALL: _data,
    Cause.HOST_STALL: _host_stall,
    Cause.BETWEEN_STEPS: _host_stall,
    Cause.TINY_KERNELS: _launch_bound,
    Cause.SYNCHRONISATION: _synchronisation,
    Cause.COMMUNICATION: _communication,
    Cause.SMALL_BUCKETS: _of_messages,
    Cause.SLOW_LINK: _of_messages,
    Cause.COPIES: _copies,
    Cause.PRECISION: _precision,
    Cause.BUBBLE: _bubble,
    Cause.LATE_RANK: _late_rank,
}
