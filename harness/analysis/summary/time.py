"""Where the time of devices went: steps, kernels, ranges, idle time. Fields only; no measurement."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class Spread(SummaryPart):
    """A distribution in five numbers, nanoseconds."""

    count: int
    median_ns: int
    min_ns: int
    max_ns: int
    p10_ns: int
    p90_ns: int


class RankSteps(SummaryPart):
    """The counted steps of one rank."""

    rank: int | None
    durations_ns: list[int]
    median_ns: int | None = None


class Steps(SummaryPart):
    """Which steps were found and how long they took."""

    source: str  # "ProfilerStep" | "range <name>" | "periodicity of <kernel>" | "none"
    found: int = 0
    counted: int = 0
    excluded_warmup: int = 0
    excluded_cut_off: int = 0
    excluded_empty: int = 0
    duration: Spread | None = None
    per_rank: list[RankSteps] = Field(default_factory=list)
    straggler_score: float | None = None
    slowest_rank: int | None = None


class TimeSplit(SummaryPart):
    """Where one stretch of one device's time went. Lengths of unions of intervals, nanoseconds.

    window = compute + exposed communication + exposed memory + idle, exactly.
    """

    window_ns: int
    compute_ns: int
    communication_ns: int | None
    exposed_communication_ns: int | None
    overlapped_communication_ns: int | None
    memory_ns: int
    exposed_memory_ns: int
    idle_ns: int | None


class KindTime(SummaryPart):
    """One kind of work on one device (or, in the job's table, on all of them)."""

    kind: str
    precision: str | None = None
    count: int
    duration_ns: int
    share: float


class IdleCause(SummaryPart):
    """Idle time that one cause explains."""

    cause: str
    duration_ns: int
    share: float


class Gap(SummaryPart):
    """One of the longest stretches in which the device did nothing."""

    start_ns: int
    duration_ns: int
    cause: str
    range: str | None = None
    before: str | None = None
    after: str | None = None


class MetricAverage(SummaryPart):
    """A sampled hardware counter, averaged over the window."""

    metric: str
    mean: float
    samples: int


class StepSplit(TimeSplit):
    """The split of one step."""

    step: str


class Device(TimeSplit):
    """One device of one process."""

    rank: int | None
    device: int
    host: str | None = None
    name: str | None = None
    source: str
    pid: int | None = None
    device_kind: str = "gpu"  # "cpu": operators of a CPU trace stand in for kernels
    gpu_events: int
    kernels: int
    overlap_fraction: float | None = None
    busy_fraction: float | None = None
    work_after_window_ns: int = 0
    steps: list[StepSplit] = Field(default_factory=list)
    kinds: list[KindTime] = Field(default_factory=list)
    idle_causes: list[IdleCause] = Field(default_factory=list)
    longest_gaps: list[Gap] = Field(default_factory=list)
    metric_averages: list[MetricAverage] = Field(default_factory=list)
    peak_memory_bytes: int | None = None


class KernelTime(SummaryPart):
    """All launches of one kernel on all devices."""

    name: str
    kind: str
    precision: str | None = None
    count: int
    duration_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    share: float


class PhaseTime(SummaryPart):
    """Device time by the phase of training that launched it, all devices."""

    phase: str
    kernels: int
    duration_ns: int
    compute_ns: int | None
    communication_ns: int | None
    share: float


class RangeTime(SummaryPart):
    """All instances of one range name, on the host and projected to the devices."""

    name: str
    instances: int
    host_ns: int
    kernels: int
    kernel_ns: int
    own_kernel_ns: int
    idle_ns: int = 0
    device_span_ns: int


class HtaSplit(SummaryPart):
    """HolisticTraceAnalysis 0.5.0's own numbers, with its trimming and rounding; for checking only."""

    source: str
    total_us: float
    idle_us: float
    compute_us: float
    noncompute_us: float
    overlap_pct: float | None
