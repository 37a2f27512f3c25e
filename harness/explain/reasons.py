"""What a data-parallel job sends that its model does not need: gradients of every micro-batch, further reductions, many
small ones, buffers. Knows each rank's collectives (Summary.traffic), not how they were found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis import device_time
from harness.analysis.labels import are_cpus
from harness.analysis.machine import disturbances
from harness.analysis.metrics import waiting_share
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Pipeline, PipelineStage, Summary, TimeLost, Traffic
from harness.analysis.summary.problem_texts import CROWDED
from harness.common.format import amount, duration, duration_range, percent, rate
from harness.experiment.base import IDLE_FOR_DATA, Change
from harness.explain.commands import (
    asked_of,
    is_ours,
    larger_micro_batch,
    measured,
    micro_batch,
    more_micro_batches,
    without_faults,
)
from harness.explain.messages import advice_of, least_waiting, named, why_single
from harness.replay.causes import CAUSES, FEWER_RANKS
from harness.replay.device_causes import CopiedJob, bubble_communication, copy_causes, has_bf16

LEAST = 0.02  # of a step: less is not told
LEAST_OF_EXPOSED = 0.1
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_LARGE = 1 << 20  # bytes of a message that is no metric
_SMALL = 1 << 16  # a message of less takes about as long as an empty one
_SCALAR = 1 << 10
_MANY = 20  # messages of a step
_MORE = 1.15  # times the gradients' bytes
_SEVERAL = 1.5  # passes of a step
_FP32 = 4  # bytes


@dataclass(frozen=True)
class Excess:
    """what: a sentence. avoidable_ns: exposed communication of a step that goes away with it. advice: what to try."""

    what: str
    avoidable_ns: float
    advice: str


def excess(s: Summary) -> Excess | None:
    """What costs most of that which the model does not need; None: nothing noticeable is known."""
    rows = of_ranks(s.traffic)
    found = [e for rule in _RULES for e in rule(s, rows)]
    exposed = sum(row.step_exposed_ns for row in rows)
    step = s.steps.duration.median_ns if s.steps.duration else 0
    least = max(LEAST * step, LEAST_OF_EXPOSED * exposed)
    largest = max(found, key=lambda e: e.avoidable_ns, default=None)
    if largest is not None and largest.avoidable_ns >= max(least, 1):
        return largest
    # who reduces in every micro-batch is not helped by more of them, however little the first rank to be done shows
    return next((e for e in _every_micro_batch(s, [row for row in rows if row.kind == "all_reduce"])), None)


def why_not_split(s: Summary) -> str | None:
    """Of one rank of a job alone: why its communication is not split, and what would show it. None: others were read,
    or it has no communication."""
    size = s.world_size or max((c.group_size or 0 for c in s.collectives), default=0)
    if len(s.sources) != 1 or size < 2 or not s.collectives:
        return None
    rank = f"rank {s.ranks[0]}" if s.ranks else "one rank"
    return (
        f"Only {rank} of {size} was read, so its communication cannot be split into waiting for other ranks and "
        "transfer: the trace of any other rank of the group shows it."
    )


def of_ranks(rows: Sequence[Traffic]) -> list[Traffic]:
    """The rows of all ranks as those of one: counts are means, times those of the rank that takes least, since what
    others take longer is waiting for a late rank."""
    alike: dict[tuple[object, ...], list[Traffic]] = defaultdict(list)
    for row in rows:
        alike[row.kind, row.group, row.phase, row.bytes].append(row)
    counts = ("count_per_step", "pass_count_per_step", "used_pass_count_per_step")
    found = []
    for same in alike.values():
        numbers = {name: sum(getattr(row, name) for row in same) / len(same) for name in counts}
        numbers |= {name: min(getattr(row, name) for row in same) for name in ("step_duration_ns", "step_exposed_ns")}
        found.append(same[0].model_copy(update={"rank": None, **numbers}))
    return found


def _gradients(rows: Sequence[Traffic]) -> list[Traffic]:
    """The reductions of backward whose group reduces nothing in forward, as tensor parallelism does."""
    forward = {(row.kind, row.group) for row in rows if row.phase == "forward"}
    reductions = (row for row in rows if row.phase == "backward" and row.kind in _REDUCTIONS)
    return [row for row in reductions if (row.kind, row.group) not in forward]


def _beside(rows: Sequence[Traffic]) -> list[Traffic]:
    """The collectives of the gradients' groups outside of forward and backward."""
    groups = {row.group for row in _gradients(rows)}
    return [row for row in rows if row.group in groups and row.phase not in ("forward", "backward")]


def _every_micro_batch(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    gradients = _gradients(rows)
    times = max((row.used_pass_count_per_step for row in gradients), default=0.0)
    if times < _SEVERAL:
        return
    repeated = [row for row in gradients if row.used_pass_count_per_step >= _SEVERAL]
    size = _bytes_per_step(repeated)
    each = f", {amount(size / times)} each time" if size else ""
    yield Excess(
        f"Gradients are reduced in every micro-batch: {times:.0f} times per step{each} ({_noun(repeated[0], 1)}, "
        f"{_group_and_rate(repeated)}).",
        _exposed(repeated) * (1 - 1 / times),
        "reduce the gradients once per step: no_sync() around all micro-batches but the last one (accelerate's "
        "accumulate() does it; ZeRO-2 and ZeRO-3 cannot)",
    )


def _further(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """Reductions beside the gradients: outside of backward, or in it where the model's size is known."""
    gradients = _gradients(rows)
    total = _bytes_per_step(gradients)
    more = [r for r in _beside(rows) if r.kind in _REDUCTIONS and (r.bytes or _LARGE) >= _LARGE and not _is_many(r)]
    if not more and (row := _beyond_the_model(s, gradients)) is not None:
        more, total = [row], total - (row.bytes or 0) * row.count_per_step
    if not more:
        return
    count, size = sum(row.count_per_step for row in more), _bytes_per_step(more)
    beside = f"the gradients' {amount(total)}" if total else "the gradients"
    of_size, unknown = (f" of {amount(size)}", "") if size else ("", " (its size was not recorded: record_shapes=True)")
    one = count < _SEVERAL
    subject = f"An additional {_noun(more[0], 1)}" if one else f"{count:.0f} additional {_noun(more[0], 2)}"
    yield Excess(
        f"{subject}{of_size} per step{unknown} {'comes' if one else 'come'} beside {beside}, exposed for "
        f"{duration(_exposed(more))} ({_group_and_rate(more)}).",
        _exposed(more),
        "leave this reduction out, do it in fewer steps, or start it earlier with async_op=True, so that it overlaps",
    )


def _beyond_the_model(s: Summary, gradients: Sequence[Traffic]) -> Traffic | None:
    """A reduction in backward by which more bytes are sent than the model has gradients."""
    parameters = max((t.parameters or 0 for t in s.training), default=0)
    sizes = [row for row in gradients if row.bytes and row.bytes >= _LARGE]
    more = _bytes_per_step(gradients) - _FP32 * parameters
    if not parameters or more < (_MORE - 1) * _FP32 * parameters or any(r.used_pass_count_per_step > 1 for r in sizes):
        return None
    nearest = min(sizes, key=lambda r: abs((r.bytes or 0) * r.count_per_step - more), default=None)
    if nearest is None or abs((nearest.bytes or 0) * nearest.count_per_step / more - 1) > _MORE - 1:
        return None
    return nearest


def _small(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """Small collectives one after the other. Where phases are not known, only those of single values."""
    many = [row for row in rows if row.phase not in ("forward", "backward") and row.bytes is not None]
    scalars = [row for row in many if row.bytes is not None and row.bytes <= _SCALAR]
    chosen = [row for row in _beside(rows) if _is_many(row)] or [row for row in scalars if _is_many(row)]
    for row in chosen:
        size = f"of {amount(row.bytes)}" if row.bytes is not None else "(their size was not recorded)"
        yield Excess(
            f"{row.count_per_step:.0f} {_noun(row, 2)} {size} come one after the other in each step, exposed for "
            f"{duration(row.step_exposed_ns)} ({_group_and_rate([row])}).",
            row.step_exposed_ns * (1 - 1 / row.count_per_step),
            "put the values into one tensor (torch.stack) and reduce it once per step, or in fewer steps",
        )


def _is_many(row: Traffic) -> bool:
    return row.count_per_step >= _MANY and (row.bytes is None or row.bytes <= _SMALL)


def _buffers(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """DDP broadcasts a module's buffers before each forward, also before one that is recomputed."""
    groups = {row.group for row in _gradients(rows)}
    sent = [r for r in rows if r.kind == "broadcast" and r.group in groups and r.phase in ("forward", "backward")]
    if not sent:
        return
    size = _bytes_per_step(sent)
    where = "each forward pass" + (", also when it is recomputed" if any(r.phase == "backward" for r in sent) else "")
    sent_bytes = f", {amount(size)} per step" if size else ""
    yield Excess(
        f"DDP broadcasts the model's buffers in {where}{sent_bytes}, exposed for "
        f"{duration(_exposed(sent))} ({_group_and_rate(sent)}).",
        _exposed(sent),
        "DistributedDataParallel(broadcast_buffers=False), if the ranks' buffers may differ or are constant",
    )


_RULES = (_every_micro_batch, _further, _small, _buffers)


def _exposed(rows: Sequence[Traffic]) -> float:
    return sum(row.step_exposed_ns for row in rows)


def _bytes_per_step(rows: Sequence[Traffic]) -> float:
    """0 where a size is not known."""
    known = all(row.bytes is not None for row in rows)
    return sum((row.bytes or 0) * row.count_per_step for row in rows) if known else 0.0


def _group_and_rate(rows: Sequence[Traffic]) -> str:
    """Of the rank that takes least: "2 ranks, 14.7 GB/s"; of small messages the time of one."""
    ns, count = sum(row.step_duration_ns for row in rows), sum(row.count_per_step for row in rows)
    size = _bytes_per_step(rows)
    ranks = f"{rows[0].group_size} ranks" if rows[0].group_size else "group not recorded"
    if not size or not ns:
        return f"{ranks}, rate not known"
    return f"{ranks}, {f'{rate(size / ns)} GB/s' if size > _SMALL * count else f'{duration(ns / count)} each'}"


def _noun(row: Traffic, count: int) -> str:
    return row.kind.replace("_", "-") + "s" * (count > 1)


_WAITING = 0.5  # share of the collectives' time from which waiting, not transfer, is the matter
_UNEVEN = 1.5  # times the expected bubble: from here the bubble has another cause beside the schedule
_MOSTLY = 0.5  # share of the unexpected bubble: from here unequal stages are the cause
_MOST_OF_IT = 0.7  # of the exposed communication
_WORTH_SAYING = 0.005  # of the time


_RECORDS_THE_HOST = {
    "kineto": "torch.profiler.profile(with_stack=True)",
    "nsys": "nsys profile --trace=cuda,nvtx,osrt --sample=process-tree --python-sampling=true",
}


class Reason(NamedTuple):
    """why: sentences, or nothing. changes: what to try, the best first. more: of the part's name. largest: what most of
    it is. consists: the same as a sentence of its own."""

    why: str
    changes: tuple[Change, ...] = ()
    more: str = ""
    largest: str = ""
    consists: str = ""


def reason(s: Summary, found: TimeLost, who: str, place: str) -> Reason:
    """Why, and what to try: first without what the run itself made slow, then what its exercise can do, then advice.
    who, place: the ranks and the phase, as a sentence names them."""
    own = _REASONS.get(found.cause, _plain)(s, found)
    entry, changes = CAUSES.get(found.cause), list[Change]()
    if (fields := without_faults(s, (found.cause,), found.phase, found.ranks)) is not None:
        changes.append(Change(f"the same run without the injected fault {found.cause}", fields))
    changes += own.changes
    if entry is None:
        return own._replace(changes=(*changes, Change("find it in the timeline")))
    if entry.own_cores and any(doubt.what == CROWDED for doubt in disturbances(s)):
        return own._replace(changes=(*changes, Change(FEWER_RANKS)))
    return own._replace(changes=(*changes, Change(entry.advice.format(phase=place, who=who))))


def _plain(s: Summary, found: TimeLost) -> Reason:
    entry = CAUSES.get(found.cause)
    changes = list[Change]()
    if entry and entry.purpose and (advice := asked_of(s).on_purpose(entry.purpose, measured(s))) is not None:
        changes += advice.changes
    if entry and entry.more_work and micro_batch(s) is not None:
        text = "twice the micro-batch, so that each operator has more work"
        changes.append(Change(text, larger_micro_batch(s)))
    return Reason("", tuple(changes))


def _data(s: Summary, found: TimeLost) -> Reason:
    return _plain(s, found)._replace(why=IDLE_FOR_DATA if found.basis == "share" else "")


def _host_stall(s: Summary, found: TimeLost) -> Reason:
    """If nothing was recorded of the host, what would record it."""
    if found.what is not None:
        return Reason("")
    option = _RECORDS_THE_HOST.get(next((source.tool for source in s.sources), ""))
    if option is None or are_cpus(s.devices):
        return Reason("")
    change = Change(f"record what the host does: {option}")
    return Reason("What the host did there was not recorded.", (change,))


def _launch_bound(s: Summary, found: TimeLost) -> Reason:
    own = _plain(s, found)
    if found.basis != "share":
        return own
    if are_cpus(s.devices):
        return own._replace(why="It is Python overhead: the operators are too small to hide it.")
    return own._replace(why="The host issues kernels more slowly than the device runs them.")


def _synchronisation(s: Summary, found: TimeLost) -> Reason:
    gaps = (g for d in s.devices for g in d.longest_gaps if g.cause == "synchronisation")
    gap = max(gaps, key=lambda g: g.duration_ns, default=None)
    where = f" The longest such gap is inside {gap.range}." if gap is not None and gap.range else ""
    why = "The host waits for the device (.item(), a blocking copy, a synchronize) and launches nothing."
    return Reason(f"{why}{where}")


def _communication(s: Summary, found: TimeLost) -> Reason:
    """What it consists of, and why it is exposed."""
    return _exposed_communication(s, found)._replace(consists=named(s))


def _of_messages(s: Summary, found: TimeLost) -> Reason:
    return _plain(s, found)._replace(consists=named(s))


def _exposed_communication(s: Summary, found: TimeLost) -> Reason:
    """Why communication is exposed: an option that was switched off, what the model does not need, a late rank, one
    message."""
    asked, seen = asked_of(s), measured(s)
    # In a pipeline some waiting lies in the bubble, and how much is not known.
    waited = waiting_share(s) if s.pipeline is None else None
    more = ", without the pipeline's waiting" if s.pipeline else ""
    if waited is not None and waited > _WAITING:
        of_it = f"{percent(waited)} of it waiting for the last rank"
        more += f", {of_it}" if found.basis == "share" else ", without the waiting for the last rank"
    unsplit = why_not_split(s) or least_waiting(s)
    if (on_purpose := asked.on_purpose("communication", seen)) is not None:
        return Reason(*on_purpose, more=more)
    if (unneeded := excess(s)) is not None:
        return Reason(f"{unneeded.what} {unsplit}".strip(), (Change(unneeded.advice),), more)
    if waited is not None and waited > _WAITING and s.late_ranks:
        rank = s.late_ranks[0].rank
        change = Change(f"find in the timeline the work of rank {rank} before it arrives")
        return Reason(f"The others wait most often for rank {rank}.", (change,), more)
    why, changes = asked.send_less(seen)
    if found.basis == "replay":
        why = _in_its_place(s, found)
    if advice := advice_of(s):
        why = " ".join(filter(None, (why_single(s), why)))
        changes = (*(change for change in changes if change.fields is not None), Change(advice))
    return Reason(f"{why} {unsplit}".strip(), changes, more)


def _in_its_place(s: Summary, found: TimeLost) -> str:
    """Of one rank alone: why a step gains less than its exposed communication; empty if it gains most of it."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    if exposed is None or found.share >= _MOST_OF_IT * exposed or why_not_split(s) is None:
        return ""
    wait = "without it the device would have to wait for something else, such as the host."
    return f"It is exposed for {percent(exposed)} of the time, but {wait}"


def _copies(s: Summary, found: TimeLost) -> Reason:
    unit = "period" if by_periodicity(s.steps.source) else "step"
    causes = copy_causes(s.copies, CopiedJob(s.devices, s.steps.counted, unit))
    if not causes:
        return Reason("The device computes nothing meanwhile." if found.basis == "share" else "")
    most = causes[0]
    if found.basis == "share":
        return Reason(most.why, (Change(most.advice),), f" ({most.what})")
    return Reason(most.why, (Change(most.advice),), largest=most.what)


def _precision(s: Summary, found: TimeLost) -> Reason:
    half = "bf16" if has_bf16(s.devices) else "fp16"
    now = _precisions(s)
    why = f"In {half} products in fp32 take half the time or less, those in tf32 two thirds: that is counted here."
    what_ifs = s.replay.what_ifs if s.replay else []
    best_ns = next((w.low_ns for w in what_ifs if w.name == "products-x2" and w.ranged), None)
    if s.replay is not None and best_ns is not None:
        less = duration_range(found.lost_ns, s.replay.step_ns - best_ns)
        why = (
            f"With {half} a step takes {less} less. The smaller number counts products in fp32 as twice as fast and "
            "those in tf32 as 1.5 times; the larger one follows from the device's peaks, with half of the bytes for "
            "other kernels."
        )
    ours = is_ours(s) and half == "bf16" and not asked_of(s).in_bf16
    text = "mixed precision (bf16)" if half == "bf16" else "mixed precision: fp16, with loss scaling"
    return Reason(why, (Change(text, {"mixed_precision": True} if ours else None),), now)


def _precisions(s: Summary) -> str:
    """The time of the products in each precision of 32 bits, as a part of all kernels' time."""
    total = sum(kind.duration_ns for kind in s.kinds) or 1
    times = {name: sum(k.duration_ns for k in s.kinds if k.precision == name) for name in ("fp32", "tf32")}
    said = [f"{name} {percent(ns / total)}" for name, ns in times.items() if ns >= _WORTH_SAYING * total]
    return f" ({', '.join(said)} of the device's work)" if said else ""


def _late_rank(s: Summary, found: TimeLost) -> Reason:
    score, rank = s.steps.straggler_score, s.steps.slowest_rank
    if found.basis == "replay" or score is None:
        return Reason("")
    why = f"Its step takes {score:.2f} × the median rank's, and the others wait for it."
    what = f"find the additional work of rank {rank} in the timeline, and test its node (slurm.sh -e 0)"
    return Reason(why, (Change(what),), f" {rank}")


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


def _bubble(s: Summary, found: TimeLost) -> Reason:
    """The time inside their schedules in which the stages do not work."""
    p = s.pipeline
    if p is None:
        return Reason("")
    slow, why = _slow_stage(p), _of_the_schedule(p)
    text = "more micro-batches: twice the global batch at the same micro-batch"
    change = Change(text, more_micro_batches(s))
    if slow is not None:
        busy = slow.schedule_busy_ns / max(slow.schedule_ns, 1)
        why += f"; the rest is waiting for stage {slow.stage}, which works {percent(busy)} of that time"
        if _by_inequality(p, slow) >= (p.expected_bubble_fraction or 0.0):
            text = f"give stage {slow.stage} fewer layers: the embedding and the loss take time as well"
            change = Change(text)
    share = bubble_communication(s)
    if share < _WORTH_SAYING:
        return Reason(f"{why}.", (change,))
    shown = f"A part of it, {percent(share)} of the time, is shown as communication: "
    return Reason(f"{why}. {shown}a stage waits in its messages for the work of another stage.", (change,))


_REASONS: dict[str, Callable[[Summary, TimeLost], Reason]] = {
    "data-stall": _data,
    "host-stall": _host_stall,
    "between-steps": _host_stall,
    "tiny-kernels": _launch_bound,
    "sync": _synchronisation,
    "communication": _communication,
    "small-buckets": _of_messages,
    "slow-link": _of_messages,
    "copies": _copies,
    "fp32": _precision,
    "bubble": _bubble,
    "late-rank": _late_rank,
}
