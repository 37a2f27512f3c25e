"""The work of devices one by one: kernels, launches, copies and hardware counters. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class MetricAverage(SummaryPart, kw_only=True):
    """A sampled hardware counter, averaged over the window."""

    metric: str
    """The counter's name in nsys."""
    mean: float
    """Over the samples in the window."""
    samples: int
    """Number of samples."""


class CounterOverTime(SummaryPart, kw_only=True):
    """A sampled hardware counter in per cent, in equal columns of the device's window: SM Active, SM Issue, Tensor
    Active, warps in flight, and the throughput of memory, NVLink and PCIe, of those that were recorded."""

    metric: str
    """The counter's name in nsys."""
    column_ns: int
    """Length of a column. There are at most 60."""
    mean: list[float | None]
    """Of the samples in each column. Null if it has none."""


class KernelTime(SummaryPart, kw_only=True):
    """All launches of one kernel on all devices."""

    name: str
    """As recorded."""
    kind: str
    """Its kind."""
    precision: str | None = None
    """As for kinds."""
    count: int
    """Launches in the window, all ranks."""
    duration_ns: int
    """Sum."""
    mean_ns: int
    """Sum over count."""
    min_ns: int
    """Shortest."""
    max_ns: int
    """Longest."""
    share: float
    """Of the sum over all kernels."""
    overlapped_ns: int | None = None
    """The part of `duration_ns` beside work of the other class on the same device: of a communication kernel beside
    U(compute), of any other kernel beside U(communication). Null if CUDA graphs were recorded whole."""
    exposed_ns: int | None = None
    """Of a communication kernel `duration_ns` − `overlapped_ns`: nothing computes beside it. Launches that run at the
    same time count each, so that the sum over all names can exceed the devices' exposed communication. Null for other
    kinds, and if CUDA graphs were recorded whole."""


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
