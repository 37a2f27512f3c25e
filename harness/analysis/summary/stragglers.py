"""The slowdown of a job by stragglers, from a timeline of its operations. Fields only."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import Numbered, SummaryPart


class StragglerStage(SummaryPart):
    """One stage of the pipeline."""

    stage: int
    """Its number, from 0 on."""
    slowdown: float
    """As in `by_stage`."""
    forward_ns: int | None = None
    """Mean of a pass of one micro-batch (and model chunk), without communication."""
    backward_ns: int | None = None
    """The same of backward."""
    work: float | None = None
    """Forward and backward of all its chunks over the mean of the other stages, minus one. Null with one stage."""


class StragglerWorker(SummaryPart):
    """One worker: a stage of one data-parallel rank."""

    rank: int
    """As in `by_worker`."""
    dp_rank: int
    """Its data-parallel rank."""
    stage: int
    """Its stage."""
    slowdown: float
    """As in `by_worker`."""
    slower: float | None = None
    """Its forward and backward over the mean of the other workers of its stage, minus one. Null if it is alone."""


class StragglerShares(SummaryPart):
    """How much of the lost time a step would save with one thing even, as a share of all that stragglers cost. The
    shares need not add up to one. The largest gives `cause`."""

    stages: float
    """Each pass shortened or lengthened by one factor per stage, so that all stages have the same mean."""
    workers: float
    """The same per worker, so that it has the mean of its stage."""
    micro_batches: float
    """Each pass as long as the mean of its worker: what changes from one micro-batch, or step, to the next."""
    operations: dict[str, float] = Field(default_factory=dict)
    """Of each name in `by_operation`: all operations of that name ideal."""


class Stragglers(SummaryPart):
    """Stragglers in a timeline of operations: the rank, stage, operation, start and duration of each, from Parquet, CSV
    or Chrome events. (Of traces of processes, `stragglers` is a list: see [Straggler](#straggler).)

    **Replay.** A graph has the order of the operations on each worker, the sends and receives between stages and the
    collectives over data-parallel ranks and stages. It is solved with the durations of the file: T, without the delays
    between operations; and with ideal ones: T_ideal. Ideal is the mean over all operations of that name that compute
    (forward, backward, `gc`, `optimizer`), and the median over those that communicate. Of a communication only the
    transfer counts: from the start of its last member to its end. S = T / T_ideal, of the mean steps. S of an
    operation, a stage, a data-parallel rank: with its durations, and ideal ones for all others, over T_ideal; it can
    be below 1. Source: Lin et al., *Understanding Stragglers in Large Model Training Using What-if Analysis*, OSDI
    2025; on the published example `ST` every number is that of the authors to 0.0001 %.

    **Cause.** Below S = 1.03 there is none that counts. Else the largest of `shares` is the cause if it is at least a
    quarter: the stages differ in their work; some workers are slower than the others of their stage; micro-batches
    differ from each other, on no fixed worker; one kind of communication, or of other operation, is slow at times."""

    slowdown: float
    """S: how many times as slow the job is as without stragglers."""
    step_ns: int
    """T: the mean step, replayed."""
    ideal_step_ns: int
    """T_ideal: the same with ideal durations."""
    recorded_step_ns: int
    """The mean step of the file, with the delays between operations."""
    by_operation: dict[str, float] = Field(default_factory=dict)
    """S of each kind of operation. Sends and receives between stages are `forward-pp-comm` and `backward-pp-comm`."""
    by_stage: Numbered[float] = Field(default_factory=dict)
    """S of each stage of the pipeline."""
    by_dp_rank: Numbered[float] = Field(default_factory=dict)
    """S of each data-parallel rank: a whole pipeline."""
    by_worker: Numbered[float] = Field(default_factory=dict)
    """S of each worker by its global rank: the smaller one of its stage's and of its data-parallel rank's, as the paper
    counts. If the file has no ranks, they are in Megatron's order: stage × data-parallel ranks + data-parallel rank."""
    by_step: Numbered[float] = Field(default_factory=dict)
    """S of each step by the number in the file."""
    worst_operation: str | None = None
    """The name with the largest S."""
    worst_stage: int | None = None
    """The stage with the largest S."""
    worst_worker: StragglerWorker | None = None
    """The worker with the largest S."""
    cause: str
    """`none`, `stages`, `workers`, `micro-batches`, `operation` or `several`."""
    cause_share: float | None = None
    """The largest of `shares`."""
    cause_operation: str | None = None
    """If the cause is an operation, its name."""
    slow_workers: list[StragglerWorker] = Field(default_factory=list)
    """If the cause is workers: those at least 5 % slower than the others of their stage, and half as much as the
    slowest one; the slowest first, at most 16."""
    shares: StragglerShares | None = None
    """Null below S = 1.03."""
    forward_backward_correlation: float | None = None
    """How forward and backward of a micro-batch change together, each relative to its worker's mean (Pearson). About 1
    if sequences differ in length. Null if they do not change."""
    stages: list[StragglerStage] = Field(default_factory=list)
    """One entry per stage."""
    workers: list[StragglerWorker] = Field(default_factory=list)
    """One entry per worker, the largest S first."""
    dp_size: int
    """Data-parallel ranks."""
    pp_size: int
    """Stages."""
    chunks: int
    """Model chunks of a worker (virtual stages)."""
