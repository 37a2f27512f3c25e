"""What NCCL's own log says of a job's messages: communicators, connections, networks, settings. Fields only."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class NcclRank(SummaryPart):
    """One process. rank: in its largest communicator. trees: as NCCL prints them, of that communicator."""

    rank: int | None = None
    host: str
    pid: int
    device: int | None = None
    bus_id: str | None = None
    trees: str | None = None


class NcclCommunicator(SummaryPart):
    """A group of ranks. rings: of each channel the ranks in their order, as NCCL prints them."""

    size: int
    ranks_seen: int
    hosts: int
    channel_count: int | None = None
    nvls_channel_count: int | None = None
    p2p_channel_count: int | None = None
    rings: list[str] = Field(default_factory=list)


class NcclConnection(SummaryPart):
    """The connections of one kind among the communicators of one size, each in one direction and for one channel."""

    communicator_size: int | None = None
    transport: str
    gdrdma: bool | None = None
    between_nodes: bool | None = None
    count: int


class NcclNetwork(SummaryPart):
    """A network that NCCL uses between nodes, or for want of another way."""

    name: str
    processes: int
    network_devices: list[str] = Field(default_factory=list)
    gpu_direct_rdma: bool | None = None
    plugin: str | None = None


class NcclVariable(SummaryPart):
    """A variable that NCCL says was set, with its values: more than one where processes differ."""

    name: str
    values: list[str]


class NcclChoice(SummaryPart):
    """The algorithm and protocol that NCCL chose for messages of one size."""

    collective: str
    bytes: int
    algorithm: str
    protocol: str
    count: int


class NcclWarning(SummaryPart):
    """A warning of NCCL's, with the host that gave it first."""

    text: str
    host: str
    count: int


class Nccl(SummaryPart):
    """NCCL's logs of one run, a file for each process."""

    versions: list[str] = Field(default_factory=list)
    nvls: bool | None = None
    without_infiniband: bool = False
    ranks: list[NcclRank] = Field(default_factory=list)
    communicators: list[NcclCommunicator] = Field(default_factory=list)
    connections: list[NcclConnection] = Field(default_factory=list)
    networks: list[NcclNetwork] = Field(default_factory=list)
    variables: list[NcclVariable] = Field(default_factory=list)
    choices: list[NcclChoice] = Field(default_factory=list)
    warnings: list[NcclWarning] = Field(default_factory=list)
    processes: int = 0
    understood_count: int = 0
    skipped_count: int = 0
