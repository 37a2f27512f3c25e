"""What NCCL's log says of its connections. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class NcclConnection(SummaryPart, kw_only=True):
    """The connections of one kind. A connection has one direction and one channel. Over a network both ends log it, and
    the sender's line is counted."""

    communicator_size: int | None = None
    """Ranks of the communicator (a group of ranks). Null if the line belongs to none that is known."""
    transport: str
    """`P2P/CUMEM`, `P2P/IPC`: from GPU to GPU, over NVLink or PCIe. `SHM/direct`: through host memory. `NET/…`: a
    network."""
    gdrdma: bool | None = None
    """The network card reads and writes the GPU's memory itself (GPUDirect RDMA). Null without a network."""
    between_nodes: bool | None = None
    """The hosts of its ends differ. Null if one end's log was not read."""
    count: int
    """Number of such connections."""


class NcclNetwork(SummaryPart, kw_only=True):
    """A network that NCCL uses between nodes, or if it finds no other transport."""

    name: str
    """As in `Using network …`: `IB`, `Socket`, a plugin's."""
    processes: int
    """Processes that use it."""
    network_devices: list[str] = []
    """Its cards or interfaces, without their addresses."""


class NcclVariable(SummaryPart, kw_only=True):
    """A variable that NCCL says was set by the environment."""

    name: str
    """Of the variable."""
    values: list[str]
    """More than one if processes differ."""


class NcclWarning(SummaryPart, kw_only=True):
    """A warning of NCCL."""

    text: str
    """The first 300 characters after `NCCL WARN`."""
    host: str
    """The host that gave it first."""
    count: int
    """Lines, of all processes."""


class Nccl(SummaryPart, kw_only=True):
    """From `nccl/<host>.<pid>.log`, which NCCL writes with `--nccl-debug` (`NCCL_DEBUG=INFO`, subsystems INIT, GRAPH,
    NET and ENV; in exercise 0 also TUNING), one file per process and at most the first 200,000 lines of each. The
    formats are those of NCCL 2.18 to 2.28, as its source prints them (`src/init.cc`, `src/transport/`);
    NCCL promises no format, so a line that is not known is skipped. The tests read text
    of our own in NCCL's words. Lines of logs that others published (2.13 to 2.30) were read once, each as meant. A run
    of ours on GPUs has not been read yet. RCCL's log (2.18 to 2.27, as published logs have it) is read too. Without a
    log nothing is guessed: the report says whether gloo carried the messages, the log was not asked for, or NCCL wrote
    none.

    The row *between nodes* names the transport of the connections whose ends are on two hosts. The row gives a reason
    for sockets only if the log has one: `NCCL_IB_DISABLE` or `NCCL_NET` is set, or NCCL found no InfiniBand device. A
    plugin for the network (HPC-X's in NVIDIA's containers, AWS's for EFA) does not read `NCCL_IB_DISABLE`: `--no-ib`
    sets HPC-X's `NCCL_IBEXT_DISABLE` too, and this row shows the result."""

    versions: list[str] = []
    """NCCL's, of all processes."""
    without_infiniband: bool = False
    """A process looked for InfiniBand devices and found none."""
    connections: list[NcclConnection] = []
    """One entry per transport and size of communicator."""
    networks: list[NcclNetwork] = []
    """One entry per network."""
    variables: list[NcclVariable] = []
    """One entry per variable."""
    warnings: list[NcclWarning] = []
    """One entry per text."""
    processes: int = 0
    """Processes whose log has a line that is understood."""
