"""What host, training script and monitor say of a run. Fields only; no measurement."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class ApiTime(SummaryPart):
    """One host API call."""

    name: str
    count: int
    duration_ns: int
    mean_ns: int


class Launches(SummaryPart):
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


class Copy(SummaryPart):
    """Memory copies and sets in one direction."""

    direction: str
    count: int
    bytes: int
    duration_ns: int
    bandwidth_gb_per_s: float | None = None
    pageable_count: int = 0
    pageable_bytes: int = 0
    pageable_ns: int = 0


class RankTraining(SummaryPart):
    """What one rank's training script wrote about itself (metrics/rank<R>.jsonl)."""

    rank: int
    world_size: int | None = None
    host: str | None = None
    node: int | None = None
    pid: int | None = None
    backend: str | None = None
    device: str | None = None
    device_name: str | None = None
    host_cpu: str | None = None
    model: str | None = None
    parameters: int | None = None
    trained_parameters: int | None = None
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
    cores: str | None = None
    core_wait_ns: int | None = None
    collector_ns: int | None = None
    continued: int | None = None
    written_bytes: int | None = None


class Efficiency(SummaryPart):
    """What the job achieved, all ranks together."""

    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    step_ns: int | None = None
    model_flops_per_s_per_device: float | None = None
    peak_flops_per_s: float | None = None
    peak_source: str | None = None
    mfu: float | None = None
    hfu: float | None = None


MOST_COLUMNS = 100  # of a node's rates over time
LAST_UNIX_NS, LONGEST_NS = (
    1 << 62,
    1 << 55,
)  # in the year 2116, and over a year: all sums of them have 64 bits
_Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Column = Annotated[list[_Rate | None], Field(min_length=1, max_length=MOST_COLUMNS)]


class NetworkOverTime(SummaryPart):
    """Mean rates in columns of equal length, 10⁹ bytes per second; None where there was no sample."""

    start_ns: int = Field(ge=0, le=LAST_UNIX_NS)
    column_ns: int = Field(gt=0, le=LONGEST_NS)
    sent_gb_per_s: _Column
    received_gb_per_s: _Column


class NodeNetwork(SummaryPart):
    """What was sampled of one node's network: all its ports together, not the job's traffic alone."""

    node: str
    sampled_by: str = "monitor"  # or "nsys"
    switch: str | None = None
    ports: list[str] = Field(default_factory=list)
    loopback: bool = False
    duration_ns: int
    sent_bytes: int
    received_bytes: int
    mean_sent_gb_per_s: float
    mean_received_gb_per_s: float
    peak_gb_per_s: float
    link_gb_per_s: float | None = None
    link_from: str | None = None
    peak_share: float | None = None
    over_time: NetworkOverTime | None = None


class MonitorDevice(SummaryPart):
    """What the monitor beside the job saw of one device (gpus-monitor/<node>/)."""

    node: str
    device: int
    name: str
    samples: int
    duration_ns: int
    gaps_ns: int = 0
    mean_utilization_percent: float | None = None
    peak_memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    mean_power_watts: float | None = None
    max_power_watts: float | None = None
    energy_joules: float | None = None
    energy_from: str | None = None
