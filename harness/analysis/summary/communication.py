"""What ranks did together: collectives, waiting, clocks, pipeline stages, NCCL. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import CodeLocation, SummaryPart


class Collective(SummaryPart, kw_only=True):
    """All collectives of one kind in one group, over all ranks that were read. The i-th collective of a group on one
    rank is the i-th on every other, and agrees with it in kind, element type and (if ranks cannot differ) size. If
    recordings began or ended at different moments, one sequence is moved along the other until they agree; on one clock
    the ends decide between several places, on two clocks several places are no match. If no group was recorded, each
    kind, type and size is a sequence, and counts as matched only if all ranks are in it at one moment. Sends, receives
    and the two fused in one kernel (`send_recv`) are counted, never compared."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, recv, send_recv …"""
    group: str | None = None
    """Communicator, as recorded."""
    group_size: int | None = None
    """Its members; the world's if no group was recorded and all ranks match."""
    dtype: str | None = None
    """Element type."""
    count: int
    """Collectives, not once per rank. Of those that could not be matched, the count of the rank with most; of sends,
    receives and `send_recv`, of all ranks."""
    ranks: int
    """Ranks that were read."""
    min_rank_count: int | None = None
    """Calls of the rank that made fewest."""
    max_rank_count: int | None = None
    """Calls of the rank that made most. It differs from `min_rank_count` if ranks made different calls."""
    bytes: int | None = None
    """Sum of message sizes, as nccl-tests counts them (the larger of input and output). Of all_gather, reduce_scatter,
    all_to_all, gather and scatter nsys records one rank's part: it is multiplied by `group_size`, and null if the size
    of the group was not recorded."""
    duration_ns: int
    """Sum over collectives and ranks."""
    mean_ns: int
    """Of one rank in one collective."""
    waiting_ns: int | None = None
    """Σ (duration − the fastest rank's duration of the same collective), without `profiler_ns`."""
    transfer_ns: int | None = None
    """`duration_ns` − `waiting_ns` − `profiler_ns`."""
    waiting_fraction: float | None = None
    """`waiting_ns` / (`duration_ns` − `profiler_ns`)."""
    least_waiting_ns: int | None = None
    """If some ranks of the group were not read, and several were: Σ (duration − the duration of the fastest one of
    those that were read). At least so much is waiting."""
    profiler_ns: int = 0
    """The same sum as `waiting_ns`, over the collectives in which ranks wait for another rank's profiler (see
    `help numbers problems`)."""
    mean_start_skew_ns: int | None = None
    """Mean of last start − first start, clocks aligned; without those of `profiler_ns`."""
    algorithm_bandwidth_gb_per_s: float | None = None
    """Σ bytes / Σ fastest duration, 10⁹ B/s. If not every member was read, of those that were, so waiting is inside."""
    bus_bandwidth_gb_per_s: float | None = None
    """Algorithm bandwidth times 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter, all_to_all, gather,
    scatter, else 1. Source: nccl-tests, doc/PERFORMANCE.md."""
    last_arrivals: dict[int, int] = {}
    """How often each rank started last; without those of `profiler_ns`."""
    hosts: int | None = None
    """Distinct hosts of the ranks that were read. Above 1, the traffic crosses the network."""


class CollectivePhase(SummaryPart, kw_only=True):
    """Collectives of one kind by the phase of training that issued them, summed over ranks."""

    kind: str
    """As above."""
    phase: str
    """Forward, backward, optimizer, data loading, send/recv, other: the innermost range with such a name around the
    launch. If no range of backward was recorded, autograd's operators show it."""
    count: int
    """Summed over ranks."""
    count_per_step: float | None = None
    """Count / counted steps of all ranks."""
    bytes: int | None = None
    """Summed over ranks. Null if one was not recorded."""
    least_bytes: int = 0
    """Of those that were recorded."""
    duration_ns: int
    """Summed over ranks."""


class Traffic(SummaryPart, kw_only=True):
    """The collectives of one rank of one kind, group, phase and message size, in the window of counted steps. Of each
    rank the 100 rows with most time."""

    rank: int | None
    """The rank."""
    kind: str
    """As above."""
    group: str | None = None
    """Communicator, as recorded."""
    group_size: int | None = None
    """Its members, where recorded."""
    phase: str
    """As above."""
    bytes: int | None
    """One message. Null: not recorded (a CPU's collectives have a size with torch.profiler's `record_shapes=True`)."""
    count_per_step: float
    """Collectives / counted steps."""
    pass_count_per_step: float
    """Passes through the phase in a step: all its ranges with no other phase between them are one. More than one
    forward or backward pass: several micro-batches."""
    used_pass_count_per_step: float
    """Those that have such a collective."""
    step_duration_ns: int
    """Σ duration / counted steps."""
    step_exposed_ns: int
    """The part of the duration in which the rank computes nothing. What several collectives share at one moment counts
    for each in proportion."""


class LongMessage(SummaryPart, kw_only=True):
    """The collectives of one rank of one kind, group, phase, size and place, in the window; of each rank the 5 rows
    with most exposed time. If sizes were not recorded, a row has only those that are exposed for at least half as long
    as the longest one."""

    rank: int | None
    """The rank."""
    kind: str
    """As above."""
    group: str | None = None
    """Communicator, as recorded."""
    group_size: int | None = None
    """Its members; if none were recorded and all ranks match, those."""
    dtype: str | None = None
    """Element type."""
    phase: str
    """As above."""
    bytes: int | None
    """One message. Null: not recorded."""
    range: str | None = None
    """The innermost range of the program around its launch, with `#` in place of counters."""
    where: CodeLocation | None = None
    """The innermost Python function around the launch of the longest one, of the user's own code if there is one."""
    count: int
    """Collectives."""
    count_per_step: float | None = None
    """Collectives / counted steps. Null without steps."""
    duration_ns: int
    """Sum of their durations."""
    exposed_ns: int
    """The part of the duration in which the rank computes nothing. What several collectives share at one moment counts
    for each in proportion."""
    transfer_ns: int | None = None
    """Sum of the fastest rank's durations of the same collectives, without those of `profiler_ns` above. Null if not
    every rank of the group was read and matched."""
    waiting_ns: int | None = None
    """`duration_ns` − `transfer_ns`."""
    mean_start_skew_ns: int | None = None
    """Mean of last start − first start, clocks aligned."""
    last_rank: int | None = None
    """The rank that starts last most often."""
    collectives: list[int] = []
    """Their numbers among the rank's collectives, by begin, from 0. Empty if they are more than 256."""


class CollectiveFit(SummaryPart, kw_only=True):
    """t = α + β · bytes over the rows of `message_sizes`, from three sizes on: least squares of the relative error
    with α, β ≥ 0, so that a small message counts as much as a large one (exercise 0 fits its messages in the same
    way). α and β are withheld if the points do not lie on a line: R² below 0.9, or times that do not grow with the
    message size."""

    kind: str
    """As above."""
    group_size: int | None = None
    """As above."""
    points: int
    """Message sizes."""
    alpha_ns: float | None
    """Latency."""
    beta_ns_per_byte: float | None
    """Time per byte. Its inverse is a bandwidth in GB/s."""
    r_squared: float
    """Share of the variance of log(time) that the line explains. Below 0 if the line is farther from the points than
    their mean is."""
    includes_waiting: bool = False
    """As for the message sizes that it is fitted to."""


class MessageSize(SummaryPart, kw_only=True):
    """The time of one message size."""

    kind: str
    """As above."""
    group_size: int | None = None
    """As above."""
    bytes: int
    """One message."""
    count: int
    """Collectives of that size."""
    median_transfer_ns: int
    """Median of the fastest rank's duration; if ranks could not be matched, of each rank's duration."""
    includes_waiting: bool = False
    """True if ranks could not be matched: the time includes waiting for other ranks."""


class Straggler(SummaryPart, kw_only=True):
    """A rank that others wait for. Only if start skew is at least 10 % of the collectives' time. Collectives that wait
    for a rank's profiler (see `help numbers problems`) do not count."""

    rank: int
    """A rank that arrives last at least 1.5 times as often as by chance (binomial tail below 1 %)."""
    last_arrivals: int
    """How often it arrives last."""
    collectives: int
    """Of how many collectives."""
    mean_lateness_ns: int
    """Mean of its start − the first rank's."""
    evidence: str
    """The same in words."""


class Clock(SummaryPart, kw_only=True):
    """The offset of one host's clock from the first rank's, at the ends of shared collectives."""

    host: str
    """A host, or a file with another clock than its host."""
    offset_ns: int
    """Median difference of the ends of shared collectives to the first rank's clock."""
    residual_ns: int
    """Median absolute deviation from it: the error of the alignment."""
    collectives: int
    """How many ends were compared."""


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


class NcclRank(SummaryPart, kw_only=True):
    """One process."""

    rank: int | None = None
    """Of the process in its largest communicator, which is the job's if it has one of all ranks."""
    host: str
    """As each line of the log begins."""
    pid: int
    """As each line of the log begins."""
    device: int | None = None
    """The GPU's number among those that the process sees (`cudaDev`)."""
    bus_id: str | None = None
    """Its PCI bus."""
    trees: str | None = None
    """Of each channel the rank's children, itself and its parent, as NCCL prints them: `[0] 1/2/-1->0->-1`."""


class NcclCommunicator(SummaryPart, kw_only=True):
    """A group of ranks. Groups of one rank are left out. A group is identified by NCCL's `commId`, else
    (`ncclCommSplit`) by its number and colour."""

    size: int
    """Its ranks."""
    ranks_seen: int
    """Ranks whose log was read."""
    hosts: int
    """Of the ranks seen."""
    channel_count: int | None = None
    """Channels for collectives."""
    nvls_channel_count: int | None = None
    """Those of them through NVLink SHARP."""
    p2p_channel_count: int | None = None
    """Channels for sends and receives."""
    rings: list[str] = []
    """The ranks of each channel's ring in their order, which NCCL's rank 0 prints."""


class NcclConnection(SummaryPart, kw_only=True):
    """The connections of one kind. A connection has one direction and one channel. Over a network both ends log it, and
    the sender's line is counted."""

    communicator_size: int | None = None
    """Ranks of the communicator. Null if the line belongs to none that is known."""
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
    gpu_direct_rdma: bool | None = None
    """Every card can read and write GPU memory. What a connection uses is its `gdrdma`."""
    plugin: str | None = None
    """The network plugin that was loaded."""


class NcclVariable(SummaryPart, kw_only=True):
    """A variable that NCCL says was set by the environment."""

    name: str
    """Of the variable."""
    values: list[str]
    """More than one if processes differ."""


class NcclChoice(SummaryPart, kw_only=True):
    """The algorithm and protocol for messages of one size. With TUNING only (exercise 0), from the releases that print
    it; rank 0 of each communicator prints it for every message. The 100 choices made most often."""

    collective: str
    """As NCCL names it. Empty if the release does not say."""
    bytes: int
    """Of the message."""
    algorithm: str
    """Ring, Tree, NVLS …"""
    protocol: str
    """LL, LL128, Simple."""
    count: int
    """Messages."""


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
    formats are those of NCCL 2.18 to 2.28, as its source prints them (`src/init.cc`, `src/transport/`,
    `src/enqueue.cc`); NCCL promises no format, so a line that is not known is skipped and counted. The tests read text
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
    nvls: bool | None = None
    """Whether every GPU can let the NVLink switch reduce (NVLink SHARP). Null if no process says."""
    without_infiniband: bool = False
    """A process looked for InfiniBand devices and found none."""
    ranks: list[NcclRank] = []
    """One entry per process."""
    communicators: list[NcclCommunicator] = []
    """One entry per group of ranks."""
    connections: list[NcclConnection] = []
    """One entry per transport and size of communicator."""
    networks: list[NcclNetwork] = []
    """One entry per network."""
    variables: list[NcclVariable] = []
    """One entry per variable."""
    choices: list[NcclChoice] = []
    """One entry per message size."""
    warnings: list[NcclWarning] = []
    """One entry per text."""
    processes: int = 0
    """Processes whose log has a line that is understood."""
    understood_count: int = 0
    """Lines of all logs that are understood."""
    skipped_count: int = 0
    """Lines of all logs that are not, empty ones not counted."""
