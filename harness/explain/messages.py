"""Which collectives the exposed communication consists of and what helps; and what a job sends that its model does not
need: gradients of every micro-batch, further reductions, many small ones, buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.process.phases import Phase, phase_of_name
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import LongMessage, Summary, Traffic
from harness.common.display.format import amount, duration, per_step, percent, rate
from harness.common.model.alpha_beta import bus_factor
from harness.traces.python_functions import Owner, owner_of

FEW = 3  # messages of a step, or of a recording without steps, that are told as single ones
MOST = 0.5  # of the exposed communication: from here a message is most of it
SMALL = 1 << 16  # bytes: a message of less takes about as long as an empty one, so it has no rate
LARGE = 1 << 20  # bytes: of less the time is latency
_NO_WAITING = 0.05  # of the messages' time, up to which all of it is called transfer
_WAITING = 0.5  # of the messages' time, from which waiting is the matter
_LEAST_TOLD = 0.1  # of the collectives' time: less waiting is not told
_WIDE = ("float32", "float64")  # what 16 bits make smaller
_RECORDS_SIZES = {
    "kineto": "torch.profiler records it with record_shapes=True",
    "nsys": "nsys records it with NCCL's own ranges (--trace=cuda,nvtx)",
}
_OTHER = "send fewer bytes{bits}, or start it earlier with async_op=True, so that it overlaps"
_ADVICE = {
    "all_gather": "gather less: keep the output sharded (of logits: a vocabulary-parallel loss, or the last position "
    "only){bits}, or start it earlier with async_op=True, so that it overlaps",
    "broadcast": "send it once before the steps, or less often{bits}",
}
_OF_SHARDS = "shard layer by layer, so that a layer is gathered while another one computes{bits}"
_OF_GRADIENTS = (
    "let it overlap with the backward pass (smaller buckets start earlier: DDP's bucket_cap_mb){bits}, or reduce less "
    "often (accumulate gradients under no_sync())"
)
_OF_LARGE = "send fewer bytes{bits}, or give them more work to hide behind (overlap, a larger micro-batch)"
_OF_LATENCY = "do it in fewer steps, together with another one, or start it earlier with async_op=True"
_LEAST = 0.02  # of a step: less needless communication is not told
_LEAST_OF_EXPOSED = 0.1  # and of all exposed communication
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_TIMES = ("step_duration_ns", "step_exposed_ns")
_SCALAR = 1 << 10
_MANY = 20  # messages of a step
_SEVERAL = 1.5  # passes of a step
_PASSES = (Phase.FORWARD.label, Phase.BACKWARD.label)


@dataclass(frozen=True)
class LargestMessage:
    """The messages that are exposed longest. row: those of the rank that has them exposed least, since the others wait
    for it. share: of that rank's exposed communication. waiting: share of all ranks' time; None: not known."""

    row: LongMessage
    share: float
    waiting: float | None

    @property
    def each(self) -> float:
        """How many there are in a step, or in a recording without steps."""
        return self.row.count if self.row.count_per_step is None else self.row.count_per_step

    @property
    def is_single(self) -> bool:
        """Whether a single message, or a few of a kind, is most of what is exposed."""
        return self.share >= MOST and self.each < FEW + 0.5

    @property
    def gb_per_s(self) -> float | None:
        """Algorithm bandwidth, of the transfer where that is known."""
        row = self.row
        ns = row.duration_ns if row.transfer_ns is None else row.transfer_ns
        return row.bytes * row.count / ns if row.bytes and ns else None

    @property
    def bus_gb_per_s(self) -> float | None:
        """Bus bandwidth; None where the group's size is not known."""
        factor = bus_factor(self.row.kind, self.row.group_size)
        return None if self.gb_per_s is None or factor is None else self.gb_per_s * factor


def largest(s: Summary) -> LargestMessage | None:
    """What most of the exposed communication is; None: no collective was recorded, or none is exposed."""
    alike: dict[tuple[object, ...], list[LongMessage]] = defaultdict(list)
    for row in s.long_messages:
        alike[row.kind, row.group_size, row.phase, row.bytes, row.range].append(row)
    found = [_of_ranks(s, rows) for rows in alike.values()]
    best = max(found, key=lambda own: own.row.exposed_ns, default=None)
    return best if best is not None and best.row.exposed_ns > 0 else None


def _of_ranks(s: Summary, long_messages: Sequence[LongMessage]) -> LargestMessage:
    longest: dict[int | None, LongMessage] = {}  # a rank may have several groups of one size
    for row in long_messages:
        if row.rank not in longest or row.exposed_ns > longest[row.rank].exposed_ns:
            longest[row.rank] = row
    rows = list(longest.values())
    least = min(rows, key=lambda row: row.exposed_ns)
    exposed = [d.exposed_communication_ns or 0 for d in s.devices if d.rank == least.rank]
    known = [row for row in rows if row.waiting_ns is not None]
    total_ns = sum(row.duration_ns for row in known)
    waiting = sum(row.waiting_ns or 0 for row in known) / total_ns if total_ns else None
    return LargestMessage(least, least.exposed_ns / max(sum(exposed), least.exposed_ns, 1), waiting)


def named(s: Summary) -> str:
    """What the exposed communication consists of: "Most of the exposed communication is one all-gather of 1.05 GB among
    2 ranks inside Head, exposed for 441 ms at 2.38 GB/s (bus bandwidth 1.19 GB/s)."; empty if not recorded."""
    found = largest(s)
    if found is None:
        return ""
    row = found.row
    own = 1.0 if row.transfer_ns is None else row.transfer_ns / max(row.duration_ns, 1)
    exposed = duration(row.exposed_ns * own * max(found.each, 1) / row.count)
    alone = " without waiting" if own < 1 - _NO_WAITING else ""
    part = "Most" if found.share >= MOST else "The largest part"
    what = message_words(s, found)
    return f"{part} of the exposed communication is {what}, exposed for {exposed}{alone}{_rate(s, found)}."


def message_words(s: Summary, message: LargestMessage) -> str:
    """The messages by number, size and place: "one all-gather of 1.05 GB among 2 ranks inside Head"."""
    row = message.row
    number = f"one {_noun(row, 1)}" if message.each < 1.5 else f"{message.each:,.0f} {_noun(row, 2)}"
    size = f" of {amount(row.bytes)}" if row.bytes is not None else ""
    group = f" among {row.group_size} ranks" if row.group_size else ""
    return f"{number}{size}{group}{_place(row)}{_unit(s, row)}"


def _unit(s: Summary, long_message: LongMessage) -> str:
    if long_message.count_per_step is None:
        return ""
    if round(long_message.count_per_step) == 0:
        return f" in {per_step(long_message.count_per_step).replace(' in ', ' of ')}"
    return " per period" if by_periodicity(s.steps.source) else " per step"


def _rate(s: Summary, largest_message: LargestMessage) -> str:
    if largest_message.row.kind == "barrier":
        return ""
    if largest_message.gb_per_s is None:
        tool = next((_RECORDS_SIZES.get(source.tool, "") for source in s.sources), "")
        records = f": {tool}" if tool else ""
        return f" (its size, and so its rate, was not recorded{records})"
    if (largest_message.row.bytes or 0) < SMALL:
        return f" ({duration(largest_message.row.duration_ns / largest_message.row.count)} each)"
    bus = "" if largest_message.bus_gb_per_s is None else f" (bus bandwidth {rate(largest_message.bus_gb_per_s)} GB/s)"
    least = "" if largest_message.row.transfer_ns is not None else ", waiting included"
    return f" at {rate(largest_message.gb_per_s)} GB/s{bus}{least}"


def _place(long_message: LongMessage) -> str:
    """The range around it that says more than its phase, else the user's function, else the phase."""
    if long_message.range and phase_of_name(long_message.range) is Phase.OTHER:
        return f" inside {long_message.range}"
    if long_message.where is not None and owner_of(long_message.where.file) is Owner.USER:
        return f" in {long_message.where.function}"
    return f" in {long_message.phase}" if long_message.phase != Phase.OTHER.label else ""


def why_single(s: Summary) -> str:
    """Of a single message: whether its ranks came together; else empty."""
    found = largest(s)
    return "" if found is None or not found.is_single else _arrival(found)


def _arrival(largest_message: LargestMessage) -> str:
    skew, last = largest_message.row.mean_start_skew_ns, largest_message.row.last_rank
    if largest_message.waiting is None or skew is None:
        return ""
    it, its = ("it", "its") if largest_message.each < 1.5 else ("them", "their")
    if largest_message.waiting > _WAITING and last is not None:
        return f"The last rank, most often rank {last}, enters {it} {duration(skew)} after the first one on average."
    together = f"The ranks enter {it} within {duration(skew)} of each other"
    if largest_message.waiting > _NO_WAITING:
        return f"{together}: {percent(largest_message.waiting)} of {its} time is waiting, the rest is transfer."
    return f"{together}, so {its} time is transfer and not waiting."


def advice_of(s: Summary) -> str:
    """What helps if a single message, or large messages, are most of what is exposed; else empty."""
    found = largest(s)
    if found is None:
        return ""
    row = found.row
    if not found.is_single:
        several = found.share >= MOST and (row.bytes or 0) >= LARGE
        return _OF_LARGE.format(bits=" (in 16 bits)" if row.dtype in _WIDE else "") if several else ""
    if found.waiting is not None and found.waiting > _WAITING and row.last_rank is not None:
        return f"find the work of rank {row.last_rank} before this {_noun(row, 1)}"
    if row.bytes is not None and row.bytes < LARGE:
        return _OF_LATENCY
    bits = ", send it in 16 bits" if row.dtype in _WIDE else ""
    text = _ADVICE.get(row.kind, _OTHER)
    if row.kind in ("all_reduce", "reduce_scatter") and row.phase == Phase.BACKWARD.label:
        text = _OF_GRADIENTS
    if row.kind == "all_gather" and "FSDP" in f"{row.range} {row.where.file if row.where else ''}":
        text = _OF_SHARDS
    return text.format(bits=" (in 16 bits)" if bits and text is _OTHER else bits)


def least_waiting(s: Summary) -> str:
    """If some ranks were not read: how much of the others' collectives is waiting at least; empty if it is little."""
    rows = [row for row in s.collectives if row.least_waiting_ns is not None]
    total_ns, waiting_ns = (
        sum(getattr(row, name) or 0 for row in rows) for name in ("duration_ns", "least_waiting_ns")
    )
    if not total_ns or waiting_ns < _LEAST_TOLD * total_ns:
        return ""
    return (
        f"At least {percent(waiting_ns / total_ns)} of the time in collectives of the ranks that were read is waiting."
    )


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
    least = max(_LEAST * step, _LEAST_OF_EXPOSED * exposed)
    largest = max(found, key=lambda e: e.avoidable_ns, default=None)
    if largest is not None and largest.avoidable_ns >= max(least, 1):
        return largest
    # who reduces in every micro-batch is not helped by more of them, however little the first rank to be done shows
    return next((e for e in _every_micro_batch(s, [row for row in rows if row.kind == "all_reduce"])), None)


def why_not_split(s: Summary) -> str | None:
    """Of one rank alone: why its communication is not split into waiting and transfer, and what would show it."""
    size = s.world_size or max((c.group_size or 0 for c in s.collectives), default=0)
    if len(s.sources) != 1 or size < 2 or not s.collectives:
        return None
    rank = f"rank {s.ranks[0]}" if s.ranks else "one rank"
    return (
        f"Only {rank} of {size} was read, so its communication cannot be split into waiting for other ranks and "
        "transfer: the trace of any other rank of the group shows it."
    )


def if_transfer(s: Summary) -> str:
    """What advice against messages needs where one rank alone was read: waiting is not changed by it; else empty."""
    return "; first see in another rank's trace that this is transfer, not waiting" if why_not_split(s) else ""


def of_ranks(rows: Sequence[Traffic]) -> list[Traffic]:
    """The rows of all ranks as one's: means of counts, and times of the rank that takes least, as the others wait."""
    alike: dict[tuple[object, ...], list[Traffic]] = defaultdict(list)
    for row in rows:
        alike[row.kind, row.group, row.phase, row.bytes].append(row)
    counts = ("count_per_step", "pass_count_per_step", "used_pass_count_per_step")
    found = []
    for same in alike.values():
        of_rank: dict[int | None, list[Traffic]] = defaultdict(list)  # several of other dtypes, or other groups' ranks
        for row in same:
            of_rank[row.rank].append(row)
        sums = {name: [sum(getattr(r, name) for r in rows) for rows in of_rank.values()] for name in (*counts, *_TIMES)}
        numbers = {name: min(each) if name in _TIMES else sum(each) / len(each) for name, each in sums.items()}
        found.append(same[0].model_copy(update={"rank": None, **numbers}))
    return found


def _gradients(rows: Sequence[Traffic]) -> list[Traffic]:
    """The reductions of backward whose group reduces nothing in forward, as tensor parallelism does."""
    forward = {(row.kind, row.group) for row in rows if row.phase == Phase.FORWARD.label}
    reductions = (row for row in rows if row.phase == Phase.BACKWARD.label and row.kind in _REDUCTIONS)
    return [row for row in reductions if (row.kind, row.group) not in forward]


def _beside(rows: Sequence[Traffic]) -> list[Traffic]:
    """The collectives of the gradients' groups outside of forward and backward."""
    groups = {row.group for row in _gradients(rows)}
    return [row for row in rows if row.group in groups and row.phase not in _PASSES]


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
    """Reductions beside the gradients, outside of backward."""
    gradients = _gradients(rows)
    total = _bytes_per_step(gradients)
    more = [r for r in _beside(rows) if r.kind in _REDUCTIONS and (r.bytes or LARGE) >= LARGE and not _is_many(r)]
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


def _small(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """Small collectives one after the other. Where phases are not known, only those of single values."""
    many = [row for row in rows if row.phase not in _PASSES and row.bytes is not None]
    scalars = [row for row in many if row.bytes is not None and row.bytes <= _SCALAR]
    chosen = [row for row in _beside(rows) if _is_many(row)] or [row for row in scalars if _is_many(row)]
    for row in chosen:
        size = f"of {amount(row.bytes)}" if row.bytes is not None else "(their size was not recorded)"
        yield Excess(
            f"{row.count_per_step:.0f} {_noun(row, 2)} {size} are sent in each step, exposed for "
            f"{duration(row.step_exposed_ns)} ({_group_and_rate([row])}).",
            row.step_exposed_ns * (1 - 1 / row.count_per_step),
            "put the values into one tensor (torch.stack) and reduce it once per step, or in fewer steps",
        )


def _is_many(traffic: Traffic) -> bool:
    return traffic.count_per_step >= _MANY and (traffic.bytes is None or traffic.bytes <= SMALL)


def _buffers(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """DDP broadcasts a module's buffers before each forward, also before one that is recomputed."""
    groups = {row.group for row in _gradients(rows)}
    sent = [r for r in rows if r.kind == "broadcast" and r.group in groups and r.phase in _PASSES]
    if not sent:
        return
    size = _bytes_per_step(sent)
    where = "each forward pass" + (
        ", also when it is recomputed" if any(r.phase == Phase.BACKWARD.label for r in sent) else ""
    )
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
    return f"{ranks}, {f'{rate(size / ns)} GB/s' if size > SMALL * count else f'{duration(ns / count)} each'}"


def _noun(traffic: Traffic | LongMessage, count: int) -> str:
    return ("message" if traffic.kind == "unknown" else traffic.kind.replace("_", "-")) + "s" * (count > 1)
