"""What ranks did together: collectives, waiting, clocks, pipeline stages. Fields only; no measurement."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import Numbered, SummaryPart


class Collective(SummaryPart):
    """All collectives of one kind in one group, over all ranks that were read."""

    kind: str
    group: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    count: int
    ranks: int
    min_rank_count: int | None = None
    max_rank_count: int | None = None
    bytes: int | None = None
    duration_ns: int
    mean_ns: int
    waiting_ns: int | None = None
    transfer_ns: int | None = None
    waiting_fraction: float | None = None
    profiler_ns: int = 0
    mean_start_skew_ns: int | None = None
    algorithm_bandwidth_gb_per_s: float | None = None
    bus_bandwidth_gb_per_s: float | None = None
    last_arrivals: Numbered[int] = Field(default_factory=dict)
    hosts: int | None = None


class CollectivePhase(SummaryPart):
    """Collectives of one kind by the phase of training that issued them, summed over ranks."""

    kind: str
    phase: str
    count: int
    count_per_step: float | None = None
    bytes: int | None = None
    least_bytes: int = 0
    duration_ns: int


class CollectiveFit(SummaryPart):
    """Time against message size, t = alpha + beta · bytes; None where the points are no line."""

    kind: str
    group_size: int | None = None
    points: int
    alpha_ns: float | None
    beta_ns_per_byte: float | None
    r_squared: float
    includes_waiting: bool = False


class MessageSize(SummaryPart):
    """Time of one message size, the points that a least-squares fit of α and β starts from."""

    kind: str
    group_size: int | None = None
    bytes: int
    count: int
    median_transfer_ns: int
    includes_waiting: bool = False


class Straggler(SummaryPart):
    """A rank that others wait for, with the evidence."""

    rank: int
    last_arrivals: int
    collectives: int
    mean_lateness_ns: int
    evidence: str


class Clock(SummaryPart):
    """How far one host's clock stands from the reference host's, seen at the ends of shared collectives."""

    host: str
    offset_ns: int
    residual_ns: int
    collectives: int


class PipelineStage(SummaryPart):
    """One rank as a pipeline stage."""

    stage: int
    rank: int | None
    window_ns: int
    busy_ns: int
    bubble_fraction: float
    schedule_ns: int
    schedule_busy_ns: int
    schedule_bubble_fraction: float
    warmup_ns: int
    steady_ns: int
    cooldown_ns: int
    send_recv_ns: int
    bubble_communication_ns: int = 0
    work_send_recv_ns: int = 0


class Pipeline(SummaryPart):
    """A pipeline's bubble, measured and as the schedule predicts it."""

    stages: int | None
    microbatches: int
    virtual_stages: int
    expected_bubble_fraction: float | None
    mean_bubble_fraction: float
    per_stage: list[PipelineStage]
