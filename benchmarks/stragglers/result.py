"""What the replay of a timeline says: S of the job, of its operations, stages and workers, and the cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageSlowdown:
    """One stage of the pipeline. slowdown: as in `by_stage`. forward_ns, backward_ns: the mean pass of one micro-batch
    (and model chunk), without communication. work: forward and backward of all its chunks over the mean of the other
    stages, minus one; None with one stage."""

    stage: int
    slowdown: float
    forward_ns: int
    backward_ns: int
    work: float | None


@dataclass(frozen=True)
class WorkerSlowdown:
    """One worker: a stage of one data-parallel rank. slowdown: as in `by_worker`. slower: its forward and backward over
    the mean of the other workers of its stage, minus one; None if it is alone."""

    rank: int
    dp_rank: int
    stage: int
    slowdown: float
    slower: float | None


@dataclass(frozen=True)
class Shares:
    """How much of the lost time a step would save with one thing even, as a share of all that stragglers cost. The
    shares need not add up to one. The largest gives the cause.

    stages: each pass shortened or lengthened by one factor per stage, so that all stages have the same mean. workers:
    the same per worker, so that it has the mean of its stage. micro_batches: each pass as long as the mean of its
    worker. operations: of each name in `by_operation`, all operations of that name ideal."""

    stages: float
    workers: float
    micro_batches: float
    operations: dict[str, float]


@dataclass(frozen=True)
class JobSlowdown:
    """The slowdown of one job.

    **Replay.** A graph has the order of the operations on each worker, the sends and receives between stages and the
    collectives over data-parallel ranks and stages. It is solved with the durations of the file: T, without the delays
    between operations; and with ideal ones: T_ideal. Ideal is the mean over all operations of that name that compute
    (forward, backward, `gc`, `optimizer`), and the median over those that communicate. Of a communication only the
    transfer counts: from the start of its last member to its end. S = T / T_ideal, of the mean steps. S of an
    operation, a stage, a data-parallel rank: with its durations, and ideal ones for all others, over T_ideal; it can
    be below 1.

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
    by_operation: dict[str, float]
    """S of each kind of operation. Sends and receives between stages are `forward-pp-comm` and `backward-pp-comm`."""
    by_stage: dict[int, float]
    by_dp_rank: dict[int, float]
    """S of each data-parallel rank: a whole pipeline."""
    by_worker: dict[int, float]
    """S of each worker by its global rank: the smaller one of its stage's and of its data-parallel rank's, as the paper
    counts. If the file has no ranks, they are in Megatron's order: stage × data-parallel ranks + data-parallel rank."""
    by_step: dict[int, float]
    """S of each step by the number in the file."""
    worst_stage: int
    cause: str
    """`none`, `stages`, `workers`, `micro-batches`, `operation` or `several`."""
    cause_share: float | None
    cause_operation: str | None
    """If the cause is an operation, its name."""
    slow_workers: list[WorkerSlowdown]
    """If the cause is workers: those at least 5 % slower than the others of their stage, and half as much as the
    slowest one; the slowest first, at most 16."""
    shares: Shares | None
    """None below S = 1.03."""
    forward_backward_correlation: float | None
    """How forward and backward of a micro-batch change together, each relative to its worker's mean (Pearson). About 1
    if sequences differ in length. None if they do not change."""
    stages: list[StageSlowdown]
    workers: list[WorkerSlowdown]
    """The largest S first."""
    dp_size: int
    pp_size: int
    chunks: int
    """Model chunks of a worker (virtual stages)."""
    left_out: str | None
    """How many steps could not be replayed, and why; None: all were."""
    notes: list[str]
    """How the file was read."""
