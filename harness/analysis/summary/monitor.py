"""What the monitor of each node sampled of its devices and ports. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class NodeNetwork(SummaryPart, kw_only=True):
    """One node's network: all its ports together, whoever sends, not the job's traffic alone. There are two
    sources, each with its own row.

    By the monitor: from `gpus-monitor/<node>/network.csv`, which has at each sample what every port has received
    and sent so far: InfiniBand and RoCE ports by their own counters
    (`/sys/class/infiniband/*/ports/*/counters/port_rcv_data` and `port_xmit_data`, in units of 4 bytes), other
    interfaces by `/proc/net/dev`: those with a device behind them, else those that are no loopback, no bridge and
    no tunnel. IP over InfiniBand is in its port's counters already and does not count twice. All ports of a node are
    one sum. Traffic between GPUs of one node (NVLink, PCIe) is not in it. It was not tried on InfiniBand or RoCE:
    whether a RoCE port's own counters include what its interface counts is uncertain. Window: the whole recording. A
    rate is a difference of a counter over the time between two samples. There is no rate over a gap, or if a counter
    began again at zero.

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
