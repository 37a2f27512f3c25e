"""Who held the memory of devices, and when. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import CodeLocation, SummaryPart


class MemoryHolder(SummaryPart, kw_only=True):
    """Blocks of one category with one origin."""

    category: str
    """As above."""
    range: str
    """The innermost range that was open when they were asked for."""
    module: str
    """The innermost module then; a star stands for the number of a layer."""
    bytes: int
    """Of all of them."""
    block_count: int
    """Number of blocks."""
    where: CodeLocation | None = None
    """The user's line that asked for them. Null: none was running, or an older recording did not look."""


class MemoryMoment(SummaryPart, kw_only=True):
    """Who held what on one rank at one moment, and what the training did then."""

    rank: int
    """The rank."""
    time_ns: int
    """Since the recording began."""
    step: str | None = None
    """The step."""
    range: str
    """The innermost range that was open, as the training names it."""
    module: str
    """The innermost module. In `backward` no module is known."""
    operator: str
    """The innermost operator."""
    bytes: dict[str, int]
    """By category."""
    block_count: int
    """Storages that were held."""
    holders: list[MemoryHolder] = []
    """The 40 with most bytes."""
    where: CodeLocation | None = None
    """The user's line that asked for the last of it."""
    error: str | None = None
    """The first line of the allocator's message. Null for a peak."""

    @property
    def total_bytes(self) -> int:
        """Of all categories."""
        return sum(self.bytes.values())


class MemoryKeeper(SummaryPart, kw_only=True):
    """What a program keeps, and more of it in each step: with `--memory`."""

    name: str
    """As the program calls the list, dict or value that grows; empty if it has no name of its own, or was not found."""
    kind: str
    """Of most of its elements: `graph` (tensors with their autograd graphs), `tensor`, `array`, `text`, `objects`."""
    bytes_per_step: int
    """With all that only it holds. Of workers the mean of one process's batch."""
    where: CodeLocation | None = None
    """The user's line at which it grows; of what was not found, the line that allocates what is not freed."""
    is_allocation: bool = False
    """Whether `where` allocates."""
    ranks: list[int] = []
    """Ranks that keep it."""


class MemoryGrowth(SummaryPart, kw_only=True):
    """A number of each step that grows over the steps of the whole training. On a GPU the tensors' memory after each
    step; on the host the resident memory of the rank without the pages of files, less what the program has freed and
    the C library keeps (glibc from 2.33 on says it); the memory of the processes that load its data, in which pages
    that they share count whole; open files and threads.

    It grows if the medians of six equal parts of the last 60 % of the steps rise each time, at the end at least half
    as fast as in the mean, in no part four times as fast as in the median part, and in all by 0.5 % of the level and
    1 MiB (GPU), 2 MiB (host), 4 MiB (workers) or 12 (files, threads), and if `low` is at least a fifth of the rate.
    So a cache that fills up and stops, a level that changes once and one that wanders are no growth. At least 24
    steps are needed."""

    of: str
    """`device`, `host`, `workers`, `files` or `threads`."""
    ranks: list[int]
    """Ranks on which it grows at least half as fast as on the fastest."""
    per_step: float
    """Bytes, or number, a step: least squares on the fastest rank from `since_step` to the end."""
    low: float
    """Lower end of the 95 % interval, from the rates between the six parts (Student's t)."""
    high: float
    """Its upper end."""
    since_step: int
    """The first step from which the values lie on the line of the last 60 %."""
    by_batch: bool = False
    """It grows as the largest batch so far grows, and does not without that part: no leak."""
    is_free: bool = False
    """The host's resident memory grows, by at least 64 MiB in the last 60 % of the steps, and what the program holds
    does not: it has freed the rest. Less than that glibc keeps anyway (mallopt(3)), as it does in a worker."""
    limit_bytes: int | None = None
    """What there is: the GPU's memory; of the host the cgroup's limit or the machine's memory."""
    steps_left: int | None = None
    """Steps after the last one until that is full at this rate, with what all ranks of the host use. Null without a
    limit."""
    keepers: list[MemoryKeeper] = []
    """The largest first."""


class MemoryRank(SummaryPart, kw_only=True):
    """One rank's peak and, on a GPU, its allocator at the end of that part of a step at which most was allocated:
    `torch.cuda.memory_stats`, each `.all.current`. Null on a CPU, whose allocator does not reserve. The tests have no
    GPU: that CUDA's numbers are read as meant was not tried."""

    rank: int
    """The rank."""
    device: str
    """`cpu` or `cuda`."""
    peak_bytes: int
    """Most that tensors held at once."""
    ran_out: bool = False
    """Whether an allocation failed."""
    complete: bool = True
    """False if more blocks were made than are kept (2 000 000)."""
    allocated_bytes: int | None = None
    """`allocated_bytes` of the allocator."""
    reserved_bytes: int | None = None
    """`reserved_bytes` of the allocator."""
    inactive_split_bytes: int | None = None
    """`inactive_split_bytes` of the allocator."""
    peak_allocated_bytes: int | None = None
    """`torch.cuda.max_memory_allocated` of the process."""
    fragmentation_bytes: int | None = None
    """`reserved_bytes` − `allocated_bytes`: taken from CUDA and not in use."""


class MemoryTimeline(SummaryPart, kw_only=True):
    """Bytes of each category over time on one rank."""

    rank: int
    """The rank."""
    times_ns: list[int]
    """Since the recording began. Of each of at most 600 slices of time, the moment when most was held."""
    bytes: dict[str, list[int]]
    """At those times, by category."""
    steps: dict[str, int] = {}
    """When each step began."""


class Memory(SummaryPart, kw_only=True):
    """From `memory/rank<R>.json`, which each rank writes with `--memory-snapshot`, or of your own training with
    `--memory` in steps 2 to 7 and in the first two evaluations. The training looks at every
    operator (PyTorch's `TorchDispatchMode`, as `torch.distributed._tools.MemTracker` does) and follows the storage
    of every tensor on its device from the operator that made it to its end. So the same is recorded on a CPU and on
    a GPU, and in plain JSON: PyTorch's own snapshots are pickles, which run code when they are read. The recording
    begins with the first step and ends before the profiled steps, so that their times and traces are those of any
    run. If fewer than two optimizer steps come before them, it goes on through them, and a problem says so.

    Bytes are those that tensors asked for: an allocator rounds up, and memory that an operator needs inside itself
    is not seen. On a GPU `peak_allocated_bytes` − `peak_bytes` says how much both are. Weights, buffers of
    gradients and the optimizer's copies that no operator made count from the start of the recording; any other
    block that no operator made (*made elsewhere*) counts from its first use; a block that no operator uses is not
    seen.

    | category | a block is in it |
    |---|---|
    | weights | parameters of a module that ran; of ZeRO-3 the shards, hpZ's copy and what was gathered |
    | gradients | `.grad` and megatron's `main_grad` of parameters, ZeRO-3's buffer of them; what `backward` leaves |
    | optimizer | the optimizer's state, its float32 copies of parameters; what its step leaves |
    | activations | made in `forward` (see below), or by a module in `backward`, which computes it again |
    | buffers | given to a collective, and none of the above: DDP's buckets |
    | inputs | made while data are loaded, or numbers other than floating-point ones that came from a loader's process |
    | temporary | freed before the `forward`, `backward` or optimizer step that made it ended |
    | other | none of these, such as blocks made before the first step or in code that PyTorch does not dispatch |

    Activations are the blocks that are still there when `forward` ends. If `forward` runs out of memory, they are all
    blocks that it has made.

    As metrics (`weights_bytes` … `buffers_bytes`, of the peak) they are counted as `--plan` counts, so that both can
    be compared: it has no temporaries of its own, and counts those of `forward` and `backward` with the
    activations, those of the optimizer's step with the buffers. On the CPU, exercise 1's tiny model (311 872
    parameters, fp32, 2 ranks): weights 1 247 488 B = 4·N and buffers 1 247 488 B, both the plan's; optimizer 2 495
    128 B = 8·N + 152 (38 counters of steps); gradients at most 1 247 488 B; activations 14.91 MB, 0.2 % over the
    plan. Compared with PyTorch's allocator, as torch.profiler records it:
    tests/exercises/test_memory_snapshot.py."""

    ranks: list[MemoryRank]
    """One entry per rank whose file could be read."""
    peak: MemoryMoment | None = None
    """The moment when the tensors of one rank held most: of the rank with the highest peak, or the highest of those
    that ran out of memory."""
    failure: MemoryMoment | None = None
    """The moment when an allocation failed on that rank. Null if none did."""
    timeline: MemoryTimeline | None = None
    """Of that rank."""
