"""The numbers of one job as one versioned document: what `report` prints and `compare` reads.

It knows no trace and no file. A field that is None was not recorded, or was withheld: `withheld` says why.
Every field is defined, with its formula and source, in docs/metrics.md; a test keeps that page complete.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.analysis.numbered import Numbered

SCHEMA_VERSION: Literal[1] = 1
TOP_KERNELS = 200  # rows of `kernels`; a table as long as that may have been cut


class Part(BaseModel):
    """A piece of the summary. Unknown fields are refused: no reader ignores what it does not know.

    NaN, such as a loss that diverged, is written as text: JSON has no number for it, and null would not be read back.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Window(str, Enum):
    """Which stretch of time the numbers are about."""

    STEPS = "steps"  # first counted step's start to the last one's end; without steps as GPU
    GPU = "gpu"  # first device event's start to the last one's end, nothing trimmed


class Verdict(str, Enum):
    """How far the numbers can be believed."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    UNUSABLE = "unusable"


class Withheld(Part):
    """A number that was not given, because the data under it does not carry it."""

    field: str
    reason: str


class Finding(Part):
    """Something about the recording itself that a reader must know before any number."""

    severity: Verdict
    what: str
    evidence: str


class Quality(Part):
    """Read this first."""

    verdict: Verdict = Verdict.GOOD
    findings: list[Finding] = Field(default_factory=list)
    withheld: list[Withheld] = Field(default_factory=list)


class Source(Part):
    """One file that was read."""

    path: str
    tool: str
    tool_version: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    device_names: Numbered[str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class Spread(Part):
    """A distribution in five numbers, nanoseconds."""

    count: int
    median_ns: int
    min_ns: int
    max_ns: int
    p10_ns: int
    p90_ns: int


class RankSteps(Part):
    """The counted steps of one rank."""

    rank: int | None
    durations_ns: list[int]
    median_ns: int | None = None


class Steps(Part):
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


class Split(Part):
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


class KindTime(Part):
    """One kind of work on one device (or, in the job's table, on all of them)."""

    kind: str
    precision: str | None = None
    count: int
    duration_ns: int
    share: float


class IdleCause(Part):
    """Idle time that one cause explains."""

    cause: str
    duration_ns: int
    share: float


class Gap(Part):
    """One of the longest stretches in which the device did nothing."""

    start_ns: int
    duration_ns: int
    cause: str
    range: str | None = None
    before: str | None = None
    after: str | None = None


class MetricAverage(Part):
    """A sampled hardware counter, averaged over the window."""

    metric: str
    mean: float
    samples: int


class StepSplit(Split):
    """The split of one step."""

    step: str


class Device(Split):
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


class KernelTime(Part):
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


class PhaseTime(Part):
    """Device time by the phase of training that launched it, all devices."""

    phase: str
    kernels: int
    duration_ns: int
    compute_ns: int | None
    communication_ns: int | None
    share: float


class RangeTime(Part):
    """All instances of one range name, on the host and projected to the devices."""

    name: str
    instances: int
    host_ns: int
    kernels: int
    kernel_ns: int
    own_kernel_ns: int
    idle_ns: int = 0
    device_span_ns: int


class Collective(Part):
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
    mean_start_skew_ns: int | None = None
    algorithm_bandwidth_gb_per_s: float | None = None
    bus_bandwidth_gb_per_s: float | None = None
    last_arrivals: Numbered[int] = Field(default_factory=dict)
    hosts: int | None = None


class CollectivePhase(Part):
    """Collectives of one kind by the phase of training that issued them, summed over ranks."""

    kind: str
    phase: str
    count: int
    count_per_step: float | None = None
    bytes: int | None = None
    least_bytes: int = 0
    duration_ns: int


class CollectiveFit(Part):
    """Time against message size, t = alpha + beta · bytes, by least squares; None where the points are no line."""

    kind: str
    group_size: int | None = None
    points: int
    alpha_ns: float | None
    beta_ns_per_byte: float | None
    r_squared: float
    includes_waiting: bool = False


class MessageSize(Part):
    """Time of one message size, the points that a least-squares fit of α and β starts from."""

    kind: str
    group_size: int | None = None
    bytes: int
    count: int
    median_transfer_ns: int
    includes_waiting: bool = False


class Straggler(Part):
    """A rank that others wait for, with the evidence."""

    rank: int
    last_arrivals: int
    collectives: int
    mean_lateness_ns: int
    evidence: str


class Clock(Part):
    """How far one host's clock stands from the reference host's, seen at the ends of shared collectives."""

    host: str
    offset_ns: int
    residual_ns: int
    collectives: int


class Stage(Part):
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


class Pipeline(Part):
    """A pipeline's bubble, measured and as the schedule predicts it."""

    stages: int | None
    microbatches: int
    virtual_stages: int
    expected_bubble_fraction: float | None
    mean_bubble_fraction: float
    per_stage: list[Stage]


class ApiTime(Part):
    """One host API call."""

    name: str
    count: int
    duration_ns: int
    mean_ns: int


class Launches(Part):
    """How the host feeds the device."""

    rank: int | None = None
    kernels: int
    kernels_per_step: float | None = None
    mean_kernel_ns: int
    median_kernel_ns: int
    short_kernel_fraction: float
    with_known_launch: int
    median_delay_ns: int | None = None
    p90_delay_ns: int | None = None
    calls: list[ApiTime] = Field(default_factory=list)


class Copy(Part):
    """Memory copies and sets in one direction."""

    direction: str
    count: int
    bytes: int
    duration_ns: int
    bandwidth_gb_per_s: float | None = None
    pageable_count: int = 0
    pageable_bytes: int = 0
    pageable_ns: int = 0


class Training(Part):
    """What one rank's training script wrote about itself (metrics/rank<R>.jsonl)."""

    rank: int
    world_size: int | None = None
    host: str | None = None
    node: int | None = None
    pid: int | None = None
    backend: str | None = None
    device: str | None = None
    device_name: str | None = None
    model: str | None = None
    parameters: int | None = None
    dtype: str | None = None
    seq_length: int | None = None
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    flops_per_token: float | None = None
    peak_flops_per_s: float | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    status: str | None = None
    reason: str | None = None
    steps_total: int = 0
    steps_counted: int = 0
    phase_counted: str | None = None
    step_durations_ns: list[int] = Field(default_factory=list)
    median_step_ns: int | None = None
    median_data_ns: int | None = None
    median_forward_ns: int | None = None
    median_backward_ns: int | None = None
    median_optimizer_ns: int | None = None
    data_fraction: float | None = None
    tokens: int | None = None
    samples: int | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    losses: list[float] = Field(default_factory=list)
    profiled_unix_ns: tuple[int, int] | None = None
    peak_memory_bytes: int | None = None


class Efficiency(Part):
    """What the job achieved, all ranks together."""

    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    step_ns: int | None = None
    model_flops_per_s_per_device: float | None = None
    peak_flops_per_s: float | None = None
    peak_source: str | None = None
    mfu: float | None = None
    hfu: float | None = None


class MonitorDevice(Part):
    """What the monitor beside the job saw of one device (gpus-monitor/<node>/)."""

    node: str
    device: int
    name: str
    samples: int
    duration_ns: int
    mean_utilization_percent: float | None = None
    peak_memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    mean_power_watts: float | None = None
    max_power_watts: float | None = None
    energy_joules: float | None = None
    energy_from: str | None = None


class HtaSplit(Part):
    """HolisticTraceAnalysis 0.5.0's own numbers, with its trimming and rounding; for checking only."""

    source: str
    total_us: float
    idle_us: float
    compute_us: float
    noncompute_us: float
    overlap_pct: float | None


class Summary(Part):
    """One job."""

    as_html: ClassVar[Callable[[Summary], str] | None] = (
        None  # how a notebook shows it; set by who knows words
    )

    schema_version: Literal[1] = SCHEMA_VERSION
    quality: Quality = Field(default_factory=Quality)
    window: Window = Window.STEPS
    run: dict[str, Any] | None = None
    experiment: dict[str, Any] | None = None
    sources: list[Source] = Field(default_factory=list)
    world_size: int | None = None
    ranks: list[int] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    backend: str | None = None
    steps: Steps = Field(default_factory=lambda: Steps(source="none"))
    devices: list[Device] = Field(default_factory=list)
    kinds: list[KindTime] = Field(default_factory=list)
    kernels: list[KernelTime] = Field(default_factory=list)
    unclassified: list[KernelTime] = Field(default_factory=list)
    idle_causes: list[IdleCause] = Field(default_factory=list)
    phases: list[PhaseTime] = Field(default_factory=list)
    ranges: list[RangeTime] = Field(default_factory=list)
    collectives: list[Collective] = Field(default_factory=list)
    collective_phases: list[CollectivePhase] = Field(default_factory=list)
    message_sizes: list[MessageSize] = Field(default_factory=list)
    collective_fits: list[CollectiveFit] = Field(default_factory=list)
    stragglers: list[Straggler] = Field(default_factory=list)
    clocks: list[Clock] = Field(default_factory=list)
    pipeline: Pipeline | None = None
    launches: list[Launches] = Field(default_factory=list)
    copies: list[Copy] = Field(default_factory=list)
    training: list[Training] = Field(default_factory=list)
    efficiency: Efficiency | None = None
    monitor: list[MonitorDevice] = Field(default_factory=list)
    hta: list[HtaSplit] = Field(default_factory=list)

    def _repr_html_(self) -> str | None:
        return None if Summary.as_html is None else Summary.as_html(self)
