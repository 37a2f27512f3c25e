"""Which collectives a job's exposed communication consists of: name, size, group, place and rate, and what helps where
one of them is most of it. Knows the Summary's long messages, not how they were found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.labels import are_cpus
from harness.analysis.process.phases import phase_of_name
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import LongMessage, Summary
from harness.common.alpha_beta import bus_factor
from harness.common.format import amount, duration, per_step, percent, rate
from harness.theory.devices import host_link
from harness.traces.python_functions import Owner, owner_of

FEW = 3  # messages of a step, or of a recording without steps, that are told as single ones
MOST = 0.5  # of the exposed communication: from here a message is most of it
SMALL = 1 << 16  # bytes: a message of less takes about as long as an empty one, so it has no rate
LARGE = 1 << 20  # bytes: of less the time is latency
_MUCH_BELOW = 0.25  # of the slowest link between the devices; NCCL reaches 0.7 to 0.9 of it (docs/gpu.md)
_FULL_RATE = 1 << 24  # bytes, from which a message reaches its link's rate
_NO_WAITING = 0.05  # of the messages' time, up to which all of it is called transfer
_WAITING = 0.5  # of the messages' time, from which waiting is the matter
_LEAST_TOLD = 0.1  # of the collectives' time: less waiting is not told
_IN_16_BITS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
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


@dataclass(frozen=True)
class Largest:
    """The messages of a job that are exposed longest. row: those of the rank that has them exposed least, since what
    others take longer is waiting for it. share: of that rank's exposed communication. waiting: share of their time on
    all ranks; None: not known."""

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


def largest(s: Summary) -> Largest | None:
    """What most of the exposed communication is; None: no collective was recorded, or none is exposed."""
    alike: dict[tuple[object, ...], list[LongMessage]] = defaultdict(list)
    for row in s.long_messages:
        alike[row.kind, row.group_size, row.phase, row.bytes, row.range].append(row)
    found = [_of_ranks(s, rows) for rows in alike.values()]
    best = max(found, key=lambda own: own.row.exposed_ns, default=None)
    return best if best is not None and best.row.exposed_ns > 0 else None


def _of_ranks(s: Summary, rows: Sequence[LongMessage]) -> Largest:
    least = min(rows, key=lambda row: row.exposed_ns)
    exposed = [d.exposed_communication_ns or 0 for d in s.devices if d.rank == least.rank]
    known = [row for row in rows if row.waiting_ns is not None]
    total_ns = sum(row.duration_ns for row in known)
    waiting = sum(row.waiting_ns or 0 for row in known) / total_ns if total_ns else None
    return Largest(least, least.exposed_ns / max(sum(exposed), least.exposed_ns, 1), waiting)


def named(s: Summary) -> str:
    """A sentence of what the exposed communication consists of: "Most of the exposed communication is one all-gather of
    1.05 GB among 2 ranks inside Head, exposed for 441 ms at 2.38 GB/s (bus bandwidth 1.19 GB/s)."; empty where nothing
    was recorded of it."""
    found = largest(s)
    if found is None:
        return ""
    row = found.row
    noun = "message" if row.kind == "unknown" else row.kind.replace("_", "-")
    number = f"one {noun}" if found.each < 1.5 else f"{found.each:,.0f} {noun}s"
    own = 1.0 if row.transfer_ns is None else row.transfer_ns / max(row.duration_ns, 1)
    exposed = duration(row.exposed_ns * own * found.each / row.count)
    alone = " without waiting" if own < 1 - _NO_WAITING else ""
    size = f" of {amount(row.bytes)}" if row.bytes is not None else ""
    group = f" among {row.group_size} ranks" if row.group_size else ""
    part = "Most" if found.share >= MOST else "The largest part"
    what = f"{number}{size}{group}{_place(row)}{_unit(s, row)}"
    return f"{part} of the exposed communication is {what}, exposed for {exposed}{alone}{_rate(s, found)}."


def _unit(s: Summary, row: LongMessage) -> str:
    if row.count_per_step is None:
        return ""
    if round(row.count_per_step) == 0:
        return f" in {per_step(row.count_per_step).replace(' in ', ' of ')}"
    return " per period" if by_periodicity(s.steps.source) else " per step"


def _rate(s: Summary, found: Largest) -> str:
    if found.row.kind == "barrier":
        return ""
    if found.gb_per_s is None:
        tool = next((_RECORDS_SIZES.get(source.tool, "") for source in s.sources), "")
        records = f": {tool}" if tool else ""
        return f" (its size, and so its rate, was not recorded{records})"
    if (found.row.bytes or 0) < SMALL:
        return f" ({duration(found.row.duration_ns / found.row.count)} each)"
    bus = "" if found.bus_gb_per_s is None else f" (bus bandwidth {rate(found.bus_gb_per_s)} GB/s)"
    least = "" if found.row.transfer_ns is not None else ", waiting included"
    return f" at {rate(found.gb_per_s)} GB/s{bus}{least}"


def _place(row: LongMessage) -> str:
    """The range around it that says more than its phase, else the user's function, else the phase."""
    if row.range and phase_of_name(row.range) == phase_of_name(""):
        return f" inside {row.range}"
    if row.where is not None and owner_of(row.where.file) is Owner.USER:
        return f" in {row.where.function}"
    return f" in {row.phase}" if row.phase != "other" else ""


def why_single(s: Summary) -> str:
    """Of a single message: whether its ranks came together, and how far its rate is below the link's; else empty."""
    found = largest(s)
    if found is None or not found.is_single:
        return ""
    return " ".join(filter(None, (_arrival(found), _far_below(s, found))))


def _arrival(found: Largest) -> str:
    skew, last = found.row.mean_start_skew_ns, found.row.last_rank
    if found.waiting is None or skew is None:
        return ""
    it, its = ("it", "its") if found.each < 1.5 else ("them", "their")
    if found.waiting > _WAITING and last is not None:
        return f"Rank {last} enters {it} {duration(skew)} after the first rank, and the others wait."
    together = f"The ranks enter {it} within {duration(skew)} of each other"
    if found.waiting > _NO_WAITING:
        return f"{together}: {percent(found.waiting)} of {its} time is waiting, the rest is transfer."
    return f"{together}, so {its} time is transfer and not waiting."


def _far_below(s: Summary, found: Largest) -> str:
    """Its rate beside that of the devices' link to their host, which is the slowest one inside a node."""
    link, reached = host_link(next((d.name for d in s.devices if d.name), None)), found.bus_gb_per_s
    known = found.row.transfer_ns is not None and (found.row.bytes or 0) >= _FULL_RATE and len(s.hosts) == 1
    if link is None or reached is None or not known or are_cpus(s.devices):
        return ""
    if reached >= _MUCH_BELOW * link.gb_per_s:
        return ""
    share = percent(reached / link.gb_per_s)
    return f"Its bus bandwidth is {share} of the {rate(link.gb_per_s)} GB/s of {link.name}: test the link."


def advice_of(s: Summary) -> str:
    """What helps where a single message, or large messages, are most of what is exposed; else empty: fewer, larger
    ones help."""
    found = largest(s)
    if found is None:
        return ""
    row = found.row
    if not found.is_single:
        several = found.share >= MOST and (row.bytes or 0) >= LARGE
        return _OF_LARGE.format(bits="" if row.dtype in _IN_16_BITS else " (in 16 bits)") if several else ""
    if found.waiting is not None and found.waiting > _WAITING and row.last_rank is not None:
        return f"find the work of rank {row.last_rank} before this {row.kind.replace('_', '-')}"
    if row.bytes is not None and row.bytes < LARGE:
        return _OF_LATENCY
    bits = "" if row.dtype in _IN_16_BITS else ", send it in 16 bits"
    text = _ADVICE.get(row.kind, _OTHER)
    if row.kind in ("all_reduce", "reduce_scatter") and row.phase == "backward":
        text = _OF_GRADIENTS
    if row.kind == "all_gather" and "FSDP" in f"{row.range} {row.where.file if row.where else ''}":
        text = _OF_SHARDS
    said = text.format(bits=bits if text is not _OTHER else bits.replace(", send it", ""))
    return f"{said}; test the link (slurm.sh -e 0)" if _far_below(s, found) else said


def least_waiting(s: Summary) -> str:
    """Of a job of which some ranks were not read: how much of the others' collectives is waiting at least; empty if it
    is little or not known."""
    rows = [row for row in s.collectives if row.least_waiting_ns is not None]
    total_ns, waiting_ns = (
        sum(getattr(row, name) or 0 for row in rows) for name in ("duration_ns", "least_waiting_ns")
    )
    if not total_ns or waiting_ns < _LEAST_TOLD * total_ns:
        return ""
    of_rank: dict[int | None, int] = defaultdict(int)
    for device in s.devices:
        of_rank[device.rank] += device.communication_ns or 0
    long, short = max(of_rank, key=lambda rank: of_rank[rank]), min(of_rank, key=lambda rank: of_rank[rank])
    beside = f"rank {short} spends {duration(of_rank[short])}"
    return (
        f"Rank {long} spends {duration(of_rank[long])} in collectives and {beside} in the same ones: at least "
        f"{percent(waiting_ns / total_ns)} of the time of the ranks that were read is waiting."
    )
