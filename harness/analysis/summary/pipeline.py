"""The stages of a pipeline and its bubble. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class PipelineStage(SummaryPart, kw_only=True):
    """One rank as a pipeline stage. A schedule spans, in each counted iteration, from the first forward of any stage to
    the last backward of any stage. A pass belongs to the iteration in which the host began it, because a device may run
    behind."""

    stage: int
    """Lowest stage number of the rank."""
    rank: int | None
    """The rank."""
    window_ns: int
    """Of its process."""
    busy_ns: int
    """Work in the window."""
    bubble_fraction: float
    """1 − `busy_ns` / `window_ns`: all time without work, optimizer and data loading included."""
    schedule_ns: int
    """Sum of the schedules' spans."""
    schedule_busy_ns: int
    """Work inside them."""
    schedule_bubble_fraction: float
    """1 − `schedule_busy_ns` / `schedule_ns`: the bubble of theory."""
    warmup_ns: int
    """From the rank's first forward to its first backward, summed over iterations."""
    steady_ns: int
    """Between warm-up and cool-down."""
    cooldown_ns: int
    """From its last forward's end (from its first backward's start if that is later) to its last backward's end.
    Warm-up, steady and cool-down add up to the rank's own schedule."""
    send_recv_ns: int
    """U(sends and receives) inside the rank's own schedule: bubble, never work."""
    bubble_communication_ns: int = 0
    """The part of the bubble with exposed communication, or idle with the cause `communication`: mostly sends and
    receives in which the stage waits for another. The answer counts it as bubble, not as communication."""
    work_send_recv_ns: int = 0
    """The part of the stage's work on a CPU with sends and receives under way and no operator running: exposed
    communication by its definition, which the interpreter's work hides, for example under the interleaved schedule. The
    answer does not count it as communication."""


class Pipeline(SummaryPart, kw_only=True):
    """A pipeline's bubble. From ranges `forward mb<k> stage<s>` and `backward mb<k> stage<s>`. On a GPU their span is
    that of the kernels they launched and work is U(compute ∪ memory ∪ communication other than sends and receives): the
    collectives of tensor parallelism are work of the stage. On a CPU work is the ranges themselves minus every send and
    receive, because the interpreter is part of the stage."""

    stages: int | None
    """p. Null unless stages 0 to p·v − 1 were all read and another one of as many ranks would not fit into the
    world."""
    microbatches: int
    """m."""
    virtual_stages: int
    """v, stages per rank."""
    expected_bubble_fraction: float | None
    """(p−1)/(v·m+p−1). Null with `stages`. Source: Narayanan et al., SC 2021, section 2.2."""
    mean_bubble_fraction: float
    """Mean of `schedule_bubble_fraction` over the ranks that were read."""
    per_stage: list[PipelineStage]
    """One entry per rank."""
