"""What host, training script and monitor say of a run. Fields only; no measurement."""

from __future__ import annotations

from typing import Annotated

import msgspec

from harness.analysis.summary.base import SummaryPart

MOST_COLUMNS = 100  # of a node's rates over time


class ApiTime(SummaryPart, kw_only=True):
    """One host API call."""

    name: str
    """Of the call."""
    count: int
    """Calls that start in the window."""
    duration_ns: int
    """Sum."""
    mean_ns: int
    """Mean."""


class Launches(SummaryPart, kw_only=True):
    """How the host feeds the device, per process."""

    rank: int | None = None
    """Of the process."""
    kernels: int
    """Kernels that start in the window."""
    kernels_per_step: float | None = None
    """Over counted steps."""
    mean_kernel_ns: int
    """Mean duration."""
    median_kernel_ns: int
    """Median duration."""
    short_kernel_fraction: float
    """Share of kernels under 10 µs, for which launching costs about as much as running."""
    with_known_launch: int
    """Kernels whose launching call was recorded."""
    median_delay_ns: int | None = None
    """Kernel's start − launching call's start, median."""
    p90_delay_ns: int | None = None
    """90th percentile of the same."""
    calls: list[ApiTime] = []
    """The ten API calls with most time."""


class CopySize(SummaryPart, kw_only=True):
    """Copies of one class of sizes: less than 64 KiB, and from there from each power of two to the next. If large
    copies of several classes have the same bandwidth, that is the limit of the link."""

    at_least_bytes: int
    """The smallest size of the class."""
    count: int
    """Copies."""
    bytes: int
    """Sum."""
    duration_ns: int
    """Sum."""


class Copy(SummaryPart, kw_only=True):
    """Memory copies and sets in one direction, from or to one kind of host memory."""

    direction: str
    """Copy H2D, D2H, D2D, P2P, or memset."""
    memory: str | None = None
    """Of the host's side: `pageable`, `pinned` or `managed`; `device` if both sides are devices. Null: not recorded
    (rocprofv3 and PyTorch for ROCm do not say it), or memset."""
    count: int
    """Copies."""
    bytes: int
    """Sum."""
    duration_ns: int
    """Sum."""
    bandwidth_gb_per_s: float | None = None
    """Bytes / duration, 10⁹ B/s."""
    link_gb_per_s: float | None = None
    """Nominal bandwidth of the device's link to its host, one direction, from `host_links` of configs/devices.yaml;
    large copies from pinned memory reach about 85 % of it. Null: the device is not in the table or has no name in the
    recording, or the copy does not use that link."""
    exposed_ns: int = 0
    """U(these copies − compute − communication), inside the window. Time of two rows at once counts for one of them, so
    that all rows together are at most the devices' `exposed_memory_ns`."""
    small_count: int = 0
    """Copies of less than 64 KiB. Their time is mostly latency: a link of 25 GB/s sends 64 KiB in 2.6 µs."""
    small_ns: int = 0
    """Sum of their durations."""
    largest_bytes: int = 0
    """The largest copy."""
    sizes: list[CopySize] = []
    """[By size](#copysize). Copies without a recorded size are not in it."""


class RankTraining(SummaryPart, kw_only=True):
    """What one rank's training script wrote about itself: `metrics/rank<R>.jsonl`, on the script's own clock.
    Counted are steps of phase `active`, else `after`, else all."""

    rank: int
    """Global rank."""
    world_size: int | None = None
    """Ranks."""
    host: str | None = None
    """Host name."""
    node: int | None = None
    """Node number."""
    pid: int | None = None
    """Process id. One nsys report may hold several ranks, each with its own."""
    backend: str | None = None
    """gloo, nccl."""
    device: str | None = None
    """cpu, cuda."""
    device_name: str | None = None
    """The device's name."""
    host_cpu: str | None = None
    """Name of its host's processor."""
    model: str | None = None
    """Model's name."""
    parameters: int | None = None
    """Of the model."""
    trained_parameters: int | None = None
    """Parameters of the adapters, if not all parameters are trained."""
    dtype: str | None = None
    """The type in which products are computed: `float32`, `tf32`, `bfloat16` or `float8`. Under DDP the parameters
    are float32 in all of them."""
    seq_length: int | None = None
    """Tokens."""
    micro_batch_size: int | None = None
    """Samples."""
    gradient_accumulation_steps: int | None = None
    """Micro-batches per optimizer step."""
    flops_per_token: float | None = None
    """As the script computed it."""
    peak_flops_per_s: float | None = None
    """Of its device, if the script measured it."""
    versions: dict[str, str] = {}
    """Of the packages, and on a GPU of CUDA, NCCL and the driver."""
    status: str | None = None
    """completed, stopped, failed. Null: the file has no end."""
    reason: str | None = None
    """Why it stopped."""
    steps_ended_by: str | None = None
    """Of a training that is not the harness's: the call that ends a step (`optimizer`, `backward`, `forward`), or
    `clock` for seconds. Null: not known, or the training marks its own steps."""
    notes: list[str] = []
    """What the observer of such a training left out, and why; of a script that calls the profiler itself
    (`train_todo.py`), which calls are missing or wrong."""
    steps_total: int = 0
    """Steps written."""
    steps_counted: int = 0
    """Steps of the counted phase."""
    phase_counted: str | None = None
    """The counted phase."""
    step_durations_ns: list[int] = []
    """Of counted steps."""
    unprofiled_steps: int = 0
    """Steps before and after the profiled ones, in which the profiler does not work; without the first ones that are
    warm-up."""
    median_unprofiled_step_ns: int | None = None
    """Median of these steps."""
    median_unprofiled_step_on_core_ns: int | None = None
    """Median of these steps without their waits for a core."""
    median_step_ns: int | None = None
    """Median."""
    median_step_on_core_ns: int | None = None
    """Median of the steps without their waits for a core."""
    median_data_ns: int | None = None
    """Median time that it waits for data."""
    median_forward_ns: int | None = None
    """Median, host time."""
    median_backward_ns: int | None = None
    """Median, host time."""
    median_optimizer_ns: int | None = None
    """Median, host time."""
    mean_evaluation_ns: int | None = None
    """Mean time of a step in which the trained model is called in its eval mode and without gradients, with what is
    loaded for it. Its data is in no other part, and its samples and tokens do not count."""
    data_fraction: float | None = None
    """Σ data / Σ step."""
    tokens: int | None = None
    """This rank's, counted steps."""
    samples: int | None = None
    """This rank's, counted steps."""
    tokens_per_s: float | None = None
    """Tokens / Σ step."""
    samples_per_s: float | None = None
    """Samples / Σ step."""
    first_loss: float | None = None
    """Of all steps."""
    last_loss: float | None = None
    """Of all steps."""
    losses: list[float] = []
    """Of all steps."""
    profiled_unix_ns: tuple[int, int] | None = None
    """Start of the first profiled step and end of the last, unix time. Null without any."""
    peak_memory_bytes: int | None = None
    """Allocated on the GPU, or resident in the process on a CPU: the most before the profiler works, if there are such
    steps."""
    profiler_memory_bytes: int | None = None
    """By how much the steps with the profiler raise it. Null without steps before them, or without a profiler."""
    cores: str | None = None
    """Cores that the training's thread may use, for example `0-3,8`, in the last counted step that recorded them.
    Null if the system does not say."""
    core_wait_ns: int | None = None
    """Mean per counted step: the thread was ready to run and had no core."""
    collector_ns: int | None = None
    """Mean per counted step: Python's garbage collection."""
    continued: int | None = None
    """How often the process went on after a stop (SIGCONT), in the counted steps. Null without any."""
    written_bytes: int | None = None
    """Mean bytes per counted step that the process wrote to files of a disk, without the step with most: in that
    step a profiler writes its trace. Null if Linux does not say."""


class ProfilerCost(SummaryPart, kw_only=True):
    """How much longer the profiled steps take than the other steps of the same run, by the training's own clock and
    without waits for a core, which other programs cause. From a ratio of 1.15 on, what the profiler adds to a step is
    subtracted from the loss to small operators. On CPUs it is the part that lies between operators
    (`TimeLost.profiler_fraction`), at any ratio above 1. The interval of the loss then includes the same part of
    1.96 · 5 % of a step, by which two parts of a run may differ ([measured](development/diagnosis.md)). The loss is not
    told if less than 3 % of the step is left. Nothing is subtracted from other numbers, because the profiler adds time
    to operators and calls, and stalls and waits hold few of them. The answer says the ratio from 1.15 on, or if it
    subtracts something."""

    profiled_step_ns: int
    """Median of the ranks' `median_step_on_core_ns`."""
    unprofiled_step_ns: int
    """Median of the ranks' `median_unprofiled_step_on_core_ns`."""
    ratio: float
    """Profiled step / unprofiled step."""


class ProfilerOverhead(SummaryPart, kw_only=True):
    """The profiler's own work beside a process, as the profiler recorded it: filling and writing its buffers
    (`PROFILER_OVERHEAD` and CUPTI's overhead in nsys, `overhead` in torch.profiler). It is only a part of what
    profiling costs, because the time that it adds to each operator and call is not recorded."""

    rank: int | None = None
    """Of the process."""
    window_ns: int
    """The window of its devices."""
    overhead_ns: int
    """Time in the window in which the profiler worked."""


class Efficiency(SummaryPart, kw_only=True):
    """What the job achieved, all ranks together."""

    tokens_per_s: float | None = None
    """Every rank's tokens / the slowest rank's time."""
    samples_per_s: float | None = None
    """The same for samples."""
    step_ns: int | None = None
    """Median of the ranks' median steps."""
    model_flops_per_s_per_device: float | None = None
    """Tokens per second × FLOPs per token / ranks."""
    peak_flops_per_s: float | None = None
    """Of one device at the training's precision, dense. With `float8` that of fp8, although attention and the
    output are in bf16."""
    peak_source: str | None = None
    """Measured on the device (not for `float8`), or configs/devices.yaml. A device in neither has no peak."""
    mfu: float | None = None
    """Model FLOP/s per device / peak."""
    hfu: float | None = None
    """MFU × 4/3 if activations are checkpointed (the forward runs twice: 8 FLOPs per parameter and token in place
    of 6). Null if nothing is recomputed."""


LAST_UNIX_NS, LONGEST_NS = (1 << 62, 1 << 55)  # in the year 2116, and over a year: all sums of them have 64 bits
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
_Column = Annotated[list[_Rate | None], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]


class NetworkOverTime(SummaryPart, kw_only=True):
    """Mean rates in columns of equal length."""

    start_ns: Annotated[int, msgspec.Meta(ge=0, le=LAST_UNIX_NS)]
    """Unix time of the first sample."""
    column_ns: Annotated[int, msgspec.Meta(gt=0, le=LONGEST_NS)]
    """Length of a column. There are at most 100."""
    sent_gb_per_s: _Column
    """Mean rate of each column, 10⁹ bytes per second. Null if it has no sample."""
    received_gb_per_s: _Column
    """The same."""


class PortOverTime(SummaryPart, kw_only=True):
    """One port of a node in the columns of `over_time`."""

    port: str
    """Its name."""
    sent_gb_per_s: list[_Rate | None]
    """As in `over_time`."""
    received_gb_per_s: list[_Rate | None]
    """The same."""


class NodeNetwork(SummaryPart, kw_only=True):
    """One node's network: all its ports together, whoever sends, not the job's traffic alone. There are two
    sources, each with its own row.

    By the monitor: from `gpus-monitor/<node>/network.csv`, which has at each sample what every port has received
    and sent so far: InfiniBand and RoCE ports by their own counters
    (`/sys/class/infiniband/*/ports/*/counters/port_rcv_data` and `port_xmit_data`, in units of 4 bytes), other
    interfaces by `/proc/net/dev`: those with a device behind them, else those that are no bridge and no tunnel, and
    the loopback only if there is nothing else. IP over InfiniBand is in its port's counters already and does not
    count twice. All ports of a node are one sum. Traffic between GPUs of one node (NVLink, PCIe) is not in it. It
    was not tried on InfiniBand or RoCE: whether a RoCE port's own counters include what its interface counts is
    uncertain. Window: the whole recording. A rate is a difference of a counter over the time between two samples.
    There is no rate over a gap, or if a counter began again at zero.

    By nsys (`--nic-metrics`, also in reports that others recorded): from `NET_NIC_METRIC`, metrics `IB: Bytes
    sent`, `IB: Bytes received`, `Eth: Bytes sent` and `Eth: Bytes received`, each a rate in the unit that the
    report itself names (bytes/ms). Window: from nsys' first sample to its last, which is what it recorded and not
    the whole job. A port has a metric for InfiniBand and one for Ethernet: the one with more bytes is taken,
    because whether one counts the other's bytes too is uncertain. If ports are sampled at different moments, a
    moment is the sum of the ports that have a sample there. Read after nsys' published schema and other readers of
    it; no recording of a real adapter was at hand."""

    node: str
    """As the monitor names it, or its host name in nsys' report."""
    sampled_by: str = "monitor"
    """`monitor` or `nsys`."""
    switch: str | None = None
    """The switch above it, from Slurm."""
    ports: list[str] = []
    """`mlx5_0:1`, `eth0` …"""
    loopback: bool = False
    """There is no port but the loopback: the traffic stays inside the node."""
    duration_ns: int
    """Time with rates."""
    sent_bytes: int
    """Over that time."""
    received_bytes: int
    """Over that time."""
    mean_sent_gb_per_s: float
    """Bytes over time, 10⁹ bytes per second."""
    mean_received_gb_per_s: float
    """The same."""
    peak_gb_per_s: float
    """The highest rate between two samples, the larger direction. nsys' samples are finer, so their peak is
    higher."""
    link_gb_per_s: float | None = None
    """Sum of the ports' link speeds, one direction."""
    link_from: str | None = None
    """`kernel`; `site`: its `link_inter_gbps` × GPUs per node, if the kernel does not know a port's speed. Null if
    neither is known."""
    peak_share: float | None = None
    """Peak over link."""
    over_time: NetworkOverTime | None = None
    """[The rates over time](#networkovertime), which the picture draws."""
    ports_over_time: list[PortOverTime] = []
    """[Those of each port](#portovertime). Of jobs with at most 32 nodes."""


class MonitorDevice(SummaryPart, kw_only=True):
    """What the monitor beside the job saw of one device: `gpus-monitor/<node>/`, over the whole recording."""

    node: str
    """Host."""
    device: int
    """Number."""
    name: str
    """Name."""
    samples: int
    """Number of samples."""
    duration_ns: int
    """First to last sample."""
    gaps_ns: int = 0
    """The part of `duration_ns` without samples: from the last sample before the monitor died to the first one
    after its restart, or if it could not sample for ten periods and 10 s."""
    mean_utilization_percent: float | None = None
    """Mean over samples. Of a GPU it counts any work, copies from the host too: it may be 100 % while no SM works."""
    mean_sm_active_percent: float | None = None
    """SM Active: share of the time in which an SM had work, mean over SMs and samples. NVIDIA's GPUs from Hopper on,
    by NVML's GPM, which needs no rights; null for others and in older recordings. From profiled and other steps
    alike."""
    mean_tensor_active_percent: float | None = None
    """Tensor Active: share of the cycles in which the tensor cores worked, as above."""
    mean_dram_active_percent: float | None = None
    """Bandwidth of the GPU's memory over its peak, as above."""
    peak_memory_bytes: int | None = None
    """Maximum over samples. On a CPU, of the sum of the PSS (proportional set size) of the job's processes: a page that
    n processes share counts 1/n in each, so once in the job."""
    memory_total_bytes: int | None = None
    """Of the device."""
    mean_power_watts: float | None = None
    """Mean over samples. Of an AMD MI250X's two dies, the first has the power of both."""
    max_power_watts: float | None = None
    """Maximum over samples."""
    energy_joules: float | None = None
    """Last − first value of the device's counter, else power integrated by the trapezoid rule. A gap adds nothing:
    if no counter ran on over it, or if the monitor died before the job ended, energy is not given."""
    energy_from: str | None = None
    """`counter` or `power`."""
    clock_limit_shares: dict[str, float] = {}
    """Why the clock was lowered, and the share of the samples in which it was: `power cap`, `heat` (by the driver),
    `heat (hardware)`, `hardware slowdown` (heat or power), `power brake` (from outside). NVIDIA's devices only."""
