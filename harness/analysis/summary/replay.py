"""A job's events replayed, its efficiencies, its plan, its reference and its memory. Fields only; no measurement."""

from __future__ import annotations

from typing import Literal

from harness.analysis.summary.base import CodeLocation, SummaryPart

FORMER_NAMES = {
    **{f"no-stall-{phase}": f"no-host-stall-{phase}" for phase in ("forward", "backward", "optimizer")},
    "no-stall-between": "no-checkpoint",
    "own-cores": "no-noisy-neighbour",
    "no-late-messages": "no-slow-link",
    "no-host-gaps": "no-tiny-kernels",
    "free-communication": "no-communication",
}
"""Of changes in older summaries -> today's."""
NO_REPLAY = "the time of the same steps with an ideal network was not replayed"


class LineShare(SummaryPart, kw_only=True):
    """A line of the user's own code with a part of a loss. The observer of each rank samples the line in which the main
    thread is, 25 times per second in steps and 200 times in profiled ones: the innermost one that belongs neither to
    Python nor to an installed package. Of a stall it is the line in which the host was then; of work, the line with
    more time than on the other ranks, or in the other steps; of communication, the line in which the host waits for it;
    of kernels, the line that launched them."""

    where: CodeLocation
    """The line."""
    share: float
    """Of the loss, at most 1. The rest was in other lines, or in none that is known."""
    source: list[str] = []
    """The line and those around it, as they were during the run, without what looks like a secret. Empty: the file
    could not be read."""
    first_line: int = 1
    """The number of the first line in `source`."""
    inside: CodeLocation | None = None
    """Where the line is a call: the line in what it calls with the largest part of the loss."""
    called_at: CodeLocation | None = None
    """The outermost line of the user's code that leads to this one and to little else. None: there is none farther out,
    or no callers were recorded."""


class TimeLost(SummaryPart, kw_only=True):
    """One cause of lost time: the time that a step would save without this cause alone, so the savings of several
    causes do not add up. Waiting is charged to the ranks that are waited for. Reported from 3 % of the step on, if the
    interval is above zero."""

    cause: str
    """The name of the fault that causes it ([faults.md](faults.md)), also if nobody asked for a fault."""
    ranks: list[int | None]
    """The ranks that have the cause, not those that wait for them; null: not known."""
    phase: str | None = None
    """Forward, backward, optimizer, data loading, between steps or other. Null: not in a single phase."""
    what: str | None = None
    """What the host was doing, or what the device did: the operator, the call, the function, the range. Null: nothing
    was recorded, or the cause is not a single activity."""
    where: CodeLocation | None = None
    """The place in the user's own code, if it was recorded or sampled."""
    lines: list[LineShare] = []
    """The lines of the user's code with most of the loss, at most three, the largest share first. Empty: none were
    sampled, or the loss is at no line more than at others."""
    basis: Literal["replay", "share"] = "replay"
    """`replay`: measured step minus the step replayed without the cause, at most the time in which the device did
    nothing else. `share`: no replay was possible, so it is the cause's share of the devices' time."""
    every: int | None = None
    """k, if it recurs in every k-th step. Null: it has no period."""
    lost_ns: int
    """The measured step minus the step replayed without the cause, mean over the steps."""
    profiler_fraction: float | None = None
    """Of small operators on a CPU, how much of what a profiler adds to a step lies in the loss: the operators that no
    other one calls, over all operators, in these phases."""
    recorded_lost_ns: int | None = None
    """`lost_ns` as recorded, if `lost_ns` is corrected for the profiler's cost ([ProfilerCost](#profilercost))."""
    low_ns: int | None = None
    """Lower end of its 95 % interval: bootstrap over the steps (percentile method, Efron 1979). Null with fewer than
    three steps."""
    high_ns: int | None = None
    """Upper end of it."""
    share: float
    """`lost_ns` / the measured step; with the basis `share` of the devices' time."""
    standing: bool = False
    """True: a steady loss, present in every step."""
    alone: bool = False
    """True: only these ranks do it. Where cores are missing it is told although other ranks may hide what it costs."""
    at_ns: int | None = None
    """The start of the first step that it hits, on the clock of that rank's trace."""
    at_rank: int | None = None
    """The rank of `at_ns`."""
    evidence: str
    """What was seen, in words."""


class WhatIf(SummaryPart, kw_only=True):
    """The step with one thing changed: a prediction for this run on this machine, or a bound
    ([what a prediction says](investigate.md#what-would-help))."""

    name: str
    """Of the change."""
    meaning: str
    """The change in words."""
    step_ns: int
    """The step with the change: the mean measured step minus the mean over steps of (replayed − replayed with the
    change)."""
    low_ns: int | None = None
    """Lower end of the 95 % interval of the mean step of such a run: `step_ns` ± 1.96 · √(σ² + σ'² + σ''²), with the
    standard errors σ and σ' of the mean replayed step without and with the change, by bootstrap over the steps. On CPUs
    also σ'' = 5 % of `step_ns`, by which two runs differ beyond that ([measured](development/diagnosis.md)). Null with
    fewer than three steps, and with `at_most`."""
    high_ns: int | None = None
    """Upper end of it. Null with `bound`."""
    gain: float
    """1 − `step_ns` / the measured step."""
    bound: bool = False
    """True: no run reaches this step. It says how much can be gained at most."""
    ranged: bool = False
    """True: how much the change brings depends on what this run does not show, so `low_ns` to `high_ns` is the range of
    what is possible, and `step_ns` its careful end."""
    at_most: bool = False
    """True: the step is no longer with the change, and may be shorter. Example: if the cores that compute also send the
    messages, fewer messages leave them more time."""
    per: int = 1
    """Micro-batches of the present step in a step with the change. `step_ns` is divided by it, so that it is the time
    of the same work."""
    same_work: bool = False
    """True: the model's operators are the same with the change, so their times in two runs show how much slower the
    machine was in one of them."""


class Remainder(SummaryPart, kw_only=True):
    """What `unexplained_ns` of a step consists of: means over the ranks' devices, which add up to it. Each part is the
    devices' own ([TimeSplit](#timesplit)) minus what the findings take of it."""

    work_ns: int
    """Kernels without communication; on a CPU operators."""
    communication_ns: int
    """Exposed communication."""
    copies_ns: int
    """Exposed copies."""
    known_idle_ns: int
    """Idle time of causes that are known ([IdleCause](#idlecause)) and too small to be told, or hidden by others."""
    unknown_idle_ns: int
    """Idle time whose cause is not known: `other` and `not recorded`."""
    outside_ns: int = 0
    """The part of a step that lies outside of the devices' windows."""


class Replay(SummaryPart, kw_only=True):
    """The events of all ranks are one graph: an arc for each stretch of a host's or a stream's time, with its
    measured length, and arcs from a launch to its kernel, from a kernel to the host that waits for it, and between
    the ranks of a collective. In the replay every event begins when all events before it have ended. The first of
    more than three steps is replayed and not counted, because the ranks begin it as far apart as they were before
    the recording. Without marked steps all that was recorded is one step."""

    steps: int
    """Counted steps that were replayed."""
    processes: int
    """Ranks that were replayed."""
    step_ns: int
    """The job's measured step, mean over the steps."""
    replayed_ns: int
    """The same, replayed with nothing changed."""
    error: float
    """abs(`replayed_ns` − `step_ns`) / `step_ns`. Above 2 % no question is answered."""
    ideal_network_ns: int | None = None
    """The step replayed with a network of zero latency and infinite bandwidth."""
    unexplained_ns: int | None = None
    """The step replayed without all findings together: the time that no finding explains."""
    remainder: Remainder | None = None
    """What this time consists of. Null: a part of the devices' time is not known."""
    model_work_ns: int | None = None
    """Operators of forward and backward on CPUs, kernels without communication on GPUs: median over steps of the mean
    over ranks. Null without any."""
    alone: int = 0
    """Collectives whose other ranks were not read. They keep their measured length."""
    unknown_ns: int = 0
    """The time in collectives that take at least 0.3 ms and have a rank that was not read, or that the trace does not
    name: per step, of the rank with the most. The missing ranks are charged with nothing."""
    what_ifs: list[WhatIf] = []
    """The step with one thing changed, best first. Empty if `error` is above 2 %."""


class PredictedNumber(SummaryPart, kw_only=True):
    """One number of the run's `plan.json` ([theory.md](theory.md)) that the run also measured: as a
    [metric](#metrics-by-name) of the same name, or for `job_s` as the time from the job's own start to its end. Numbers
    that were not measured, or measured as 0, are left out."""

    name: str
    """Of the plan's number and of the metric."""
    label: str
    """The number in words."""
    unit: str
    """Of all numbers of the row: ns, s, bytes, tokens, tokens/s, share."""
    predicted: float
    """Before the run started. For a range its geometric mean √(low · high)."""
    low: float | None = None
    """The range's lower end. Null if the plan gave one number."""
    high: float | None = None
    """Its upper end."""
    measured: float
    """The metric."""
    ratio: float
    """`measured` / `predicted`."""
    formula: str | None = None
    """The formula of the prediction."""
    source: str | None = None
    """Of the formula, or of the numbers in it."""


class PopEfficiency(SummaryPart, kw_only=True):
    """The hierarchy of the POP Centre of Excellence, with TALP's orchestration efficiency for devices, over the counted
    steps. Uᵢ is the useful time of device i: its compute (on a CPU: its operators; Python between operators is not
    useful). Collectives, and waiting in them, are never useful. Aᵢ = Uᵢ + exposed communication + exposed copies is the
    active time of device i. E is the longest device's time. Each efficiency is a share from 0 to 1, and exactly

        parallel = load balance × communication × orchestration        communication = serialisation × transfer

    The times are those of the devices' windows in `devices`. If ranks counted different steps (another warm-up), they
    are those of the steps that all counted. Devices without a kernel do not count. Withheld if a rank was not read, the
    recording has holes, CUDA graphs hide communication, ranks share no counted step, or nothing was computed.
    Sources: POP standard metrics (co-design.pop-coe.eu/metrics); DLB's TALP, `src/talp/perf_metrics.c`, `gpu_*`;
    [what differs from them](development/decisions/010-pop-efficiency.md).

    **A series.** `compare` and `report` of several runs show these side by side. If the runs have different numbers
    of devices, each is compared with the run of fewest devices: computation scalability = Σ U per step and unit of
    work of that run / the same of this run, and global efficiency = parallel efficiency × computation scalability.
    Work is the tokens, else the samples, of a step (in strong scaling the same in every run, so that the ratio is
    that of Σ U). Both may exceed 1, for example if smaller matrices fit into a cache. Not known if the training did
    not record its tokens or samples."""

    devices: int
    """N."""
    steps: int
    """Counted steps of each device; 0 if the window is not one of steps."""
    elapsed_ns: int
    """E, the largest window of a device."""
    useful_ns: int
    """Σ Uᵢ."""
    max_useful_ns: int
    """max Uᵢ."""
    max_active_ns: int
    """max Aᵢ."""
    parallel: float
    """Σ Uᵢ / (N · E)."""
    load_balance: float
    """Σ Uᵢ / (N · max Uᵢ)."""
    communication: float
    """max Uᵢ / max Aᵢ."""
    orchestration: float
    """max Aᵢ / E: the share that is not lost to the host, launches and data loading."""
    ideal_elapsed_ns: int | None = None
    """E of a replay of the same steps with a network of zero latency and infinite bandwidth. Null without a replay."""
    serialisation: float | None = None
    """`communication` / `transfer`: the loss is the time in which devices wait for each other."""
    transfer: float | None = None
    """`ideal_elapsed_ns` / E: the loss is the time in which data move."""
    split_unknown: str | None = NO_REPLAY
    """Why `transfer` and `serialisation` are null: no replay; the replay takes longer than the run did; or an ideal
    network also saves idle time, and `serialisation` would exceed 1."""


class ReferenceStep(SummaryPart, kw_only=True):
    """The step time of a [stored reference](studies.md#references) with the same settings: all options that a
    comparison shows, as resolved. The reference of the run's site comes first, else the newest. The report says how
    much slower or faster the run is; `reference check` gives the verdict."""

    name: str
    """Of the reference."""
    variant: str
    """Its variant with these settings."""
    site: str
    """Where it was recorded."""
    device_name: str
    """Its device."""
    run_count: int
    """How many runs of the variant there are."""
    step_ns: int
    """Median over these runs of the metric `step_ns`."""
    mean_step_ns: int | None = None
    """Geometric mean over these runs of the metric `mean_step_ns`, as `reference check` compares it."""


class MemoryHolder(SummaryPart, kw_only=True):
    """Blocks of one category with one origin."""

    category: str
    """As above."""
    range: str
    """The innermost range that was open when they were asked for."""
    module: str
    """The innermost module then; a star stands for the number of a layer."""
    operator: str
    """The innermost operator then."""
    bytes: int
    """Of all of them."""
    block_count: int
    """Number of blocks."""


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
    error: str | None = None
    """The first line of the allocator's message. Null for a peak."""

    @property
    def total_bytes(self) -> int:
        """Of all categories."""
        return sum(self.bytes.values())


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
    """From `memory/rank<R>.json`, which each rank writes with `--memory-snapshot`. The training looks at every
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
    unread_count: int = 0
    """Files that could not be read; the problems of the recording name them."""
