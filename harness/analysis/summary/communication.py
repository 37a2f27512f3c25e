"""Collectives and messages between ranks, and the clocks that they align. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import CodeLocation, SummaryPart


class Collective(SummaryPart, kw_only=True):
    """All collectives of one kind in one group, over all ranks that were read. The i-th collective of a group on one
    rank is the i-th on every other, and agrees with it in kind, element type and (if ranks cannot differ) size. If
    recordings began or ended at different moments, one sequence is moved along the other until they agree; on one clock
    the ends decide between several places, on two clocks several places are no match. If no group was recorded, each
    kind, type and size is a sequence, and counts as matched only if all ranks are in it at one moment. Sends, receives
    and the two fused in one kernel (`send_recv`) are counted, never compared."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, recv, send_recv …"""
    group: str | None = None
    """Communicator, as recorded."""
    group_size: int | None = None
    """Its members; the world's if no group was recorded and all ranks match."""
    dtype: str | None = None
    """Element type."""
    count: int
    """Collectives, not once per rank. Of those that could not be matched, the count of the rank with most; of sends,
    receives and `send_recv`, of all ranks."""
    ranks: int
    """Ranks that were read."""
    min_rank_count: int | None = None
    """Calls of the rank that made fewest."""
    max_rank_count: int | None = None
    """Calls of the rank that made most. It differs from `min_rank_count` if ranks made different calls."""
    bytes: int | None = None
    """Sum of message sizes, as nccl-tests counts them (the larger of input and output). Of all_gather, reduce_scatter,
    all_to_all, gather and scatter nsys records one rank's part: it is multiplied by `group_size`, and null if the size
    of the group was not recorded."""
    duration_ns: int
    """Sum over collectives and ranks."""
    mean_ns: int
    """Of one rank in one collective."""
    waiting_ns: int | None = None
    """Σ (duration − the fastest rank's duration of the same collective), without `profiler_ns`."""
    transfer_ns: int | None = None
    """`duration_ns` − `waiting_ns` − `profiler_ns`."""
    waiting_fraction: float | None = None
    """`waiting_ns` / (`duration_ns` − `profiler_ns`)."""
    least_waiting_ns: int | None = None
    """If some ranks of the group were not read, and several were: Σ (duration − the duration of the fastest one of
    those that were read). At least so much is waiting."""
    profiler_ns: int = 0
    """The same sum as `waiting_ns`, over the collectives in which ranks wait for another rank's profiler (see
    `help numbers problems`)."""
    mean_start_skew_ns: int | None = None
    """Mean of last start − first start, clocks aligned; without those of `profiler_ns`."""
    algorithm_bandwidth_gb_per_s: float | None = None
    """Σ bytes / Σ fastest duration, 10⁹ B/s. If not every member was read, of those that were, so waiting is inside."""
    bus_bandwidth_gb_per_s: float | None = None
    """Algorithm bandwidth times 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter, all_to_all, gather,
    scatter, else 1. Source: nccl-tests, doc/PERFORMANCE.md."""
    last_arrivals: dict[int, int] = {}
    """How often each rank started last; without those of `profiler_ns`."""
    hosts: int | None = None
    """Distinct hosts of the ranks that were read. Above 1, the traffic crosses the network."""


class CollectivePhase(SummaryPart, kw_only=True):
    """Collectives of one kind by the phase of training that issued them, summed over ranks."""

    kind: str
    """As above."""
    phase: str
    """Forward, backward, optimizer, data loading, send/recv, other: the innermost range with such a name around the
    launch. If no range of backward was recorded, autograd's operators show it."""
    count: int
    """Summed over ranks."""
    count_per_step: float | None = None
    """Count / counted steps of all ranks."""
    bytes: int | None = None
    """Summed over ranks. Null if one was not recorded."""
    least_bytes: int = 0
    """Of those that were recorded."""
    duration_ns: int
    """Summed over ranks."""


class Traffic(SummaryPart, kw_only=True):
    """The collectives of one rank of one kind, group, phase and message size, in the window of counted steps. Of each
    rank the 100 rows with most time."""

    rank: int | None
    """The rank."""
    kind: str
    """As above."""
    group: str | None = None
    """Communicator, as recorded."""
    group_size: int | None = None
    """Its members, where recorded."""
    phase: str
    """As above."""
    bytes: int | None
    """One message. Null: not recorded (a CPU's collectives have a size with torch.profiler's `record_shapes=True`)."""
    count_per_step: float
    """Collectives / counted steps."""
    pass_count_per_step: float
    """Passes through the phase in a step: all its ranges with no other phase between them are one. More than one
    forward or backward pass: several micro-batches."""
    used_pass_count_per_step: float
    """Those that have such a collective."""
    step_duration_ns: int
    """Σ duration / counted steps."""
    step_exposed_ns: int
    """The part of the duration in which the rank computes nothing. What several collectives share at one moment counts
    for each in proportion."""


class LongMessage(SummaryPart, kw_only=True):
    """The collectives of one rank of one kind, group, phase, size and place, in the window; of each rank the 5 rows
    with most exposed time. If sizes were not recorded, a row has only those that are exposed for at least half as long
    as the longest one."""

    rank: int | None
    """The rank."""
    kind: str
    """As above."""
    group: str | None = None
    """Communicator, as recorded."""
    group_size: int | None = None
    """Its members; if none were recorded and all ranks match, those."""
    dtype: str | None = None
    """Element type."""
    phase: str
    """As above."""
    bytes: int | None
    """One message. Null: not recorded."""
    range: str | None = None
    """The innermost range of the program around its launch, with `#` in place of counters."""
    where: CodeLocation | None = None
    """The innermost Python function around the launch of the longest one, of the user's own code if there is one."""
    count: int
    """Collectives."""
    count_per_step: float | None = None
    """Collectives / counted steps. Null without steps."""
    duration_ns: int
    """Sum of their durations."""
    exposed_ns: int
    """The part of the duration in which the rank computes nothing. What several collectives share at one moment counts
    for each in proportion."""
    transfer_ns: int | None = None
    """Sum of the fastest rank's durations of the same collectives, without those of `profiler_ns` above. Null if not
    every rank of the group was read and matched."""
    waiting_ns: int | None = None
    """`duration_ns` − `transfer_ns`."""
    mean_start_skew_ns: int | None = None
    """Mean of last start − first start, clocks aligned."""
    last_rank: int | None = None
    """The rank that starts last most often."""
    collectives: list[int] = []
    """Their numbers among the rank's collectives, by begin, from 0. Empty if they are more than 256."""


class CollectiveFit(SummaryPart, kw_only=True):
    """t = α + β · bytes over the rows of `message_sizes`, from three sizes on: least squares of the relative error
    with α, β ≥ 0, so that a small message counts as much as a large one (exercise 0 fits its messages in the same
    way). α and β are withheld if the points do not lie on a line: R² below 0.9, or times that do not grow with the
    message size."""

    kind: str
    """As above."""
    group_size: int | None = None
    """As above."""
    points: int
    """Message sizes."""
    alpha_ns: float | None
    """Latency."""
    beta_ns_per_byte: float | None
    """Time per byte. Its inverse is a bandwidth in GB/s."""
    r_squared: float
    """Share of the variance of log(time) that the line explains. Below 0 if the line is farther from the points than
    their mean is."""
    includes_waiting: bool = False
    """As for the message sizes that it is fitted to."""


class MessageSize(SummaryPart, kw_only=True):
    """The time of one message size."""

    kind: str
    """As above."""
    group_size: int | None = None
    """As above."""
    bytes: int
    """One message."""
    count: int
    """Collectives of that size."""
    median_transfer_ns: int
    """Median of the fastest rank's duration; if ranks could not be matched, of each rank's duration."""
    includes_waiting: bool = False
    """True if ranks could not be matched: the time includes waiting for other ranks."""


class Straggler(SummaryPart, kw_only=True):
    """A rank that others wait for. Only if start skew is at least 10 % of the collectives' time. Collectives that wait
    for a rank's profiler (see `help numbers problems`) do not count."""

    rank: int
    """A rank that arrives last at least 1.5 times as often as by chance (binomial tail below 1 %)."""
    last_arrivals: int
    """How often it arrives last."""
    collectives: int
    """Of how many collectives."""
    mean_lateness_ns: int
    """Mean of its start − the first rank's."""
    evidence: str
    """The same in words."""


class Clock(SummaryPart, kw_only=True):
    """The offset of one host's clock from the first rank's, at the ends of shared collectives."""

    host: str
    """A host, or a file with another clock than its host."""
    offset_ns: int
    """Median difference of the ends of shared collectives to the first rank's clock."""
    residual_ns: int
    """Median absolute deviation from it: the error of the alignment."""
    collectives: int
    """How many ends were compared."""
