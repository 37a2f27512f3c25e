"""Where the time of devices went: steps, kinds of work, idle time and its causes. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import CodeLocation, SummaryPart
from harness.analysis.summary.kernels import CounterOverTime, MetricAverage


class Spread(SummaryPart, kw_only=True):
    """A distribution. Percentiles interpolate linearly and are rounded to nanoseconds."""

    count: int
    """Number of values."""
    median_ns: int
    """50th percentile."""
    min_ns: int
    """Smallest."""
    max_ns: int
    """Largest."""
    p10_ns: int
    """10th percentile."""
    p90_ns: int
    """90th percentile."""


class RankSteps(SummaryPart, kw_only=True):
    """The counted steps of one rank."""

    rank: int | None
    """Null if the trace does not say."""
    durations_ns: list[int]
    """Of each counted step, in order."""
    median_ns: int | None = None
    """Their median."""
    steps: list[int] = []
    """The number of each: the training's own, if ranges as `batch_7` count inside the marks or are the marks; else the
    mark's. If nothing numbers them they count from 0."""


class Steps(SummaryPart, kw_only=True):
    """Which steps were found and how long they took."""

    source: str
    """`ProfilerStep`; else `range <word>`: ranges that count up, the outermost of iteration, iter, global step, train
    step, step, batch; without a mark, or with several such ranges in each mark, `range Optimizer.step#<name>`:
    PyTorch's own ranges of the optimizer that steps least often, from one's end to the next one's, several of them if
    the work recurs only after so many, and without a mark if they cover half of the recording; else `periodicity of
    <kernel>`: the rarest kernel whose occurrences are even (90th over 10th percentile of their distances below 1.5) and
    cover 70 % of the device's time; else `none`."""
    found: int = 0
    """Steps of all ranks."""
    counted: int = 0
    """Found minus the four below."""
    excluded_warmup: int = 0
    """Leading steps longer than twice the median of all later ones, and at least three later ones must remain; on one
    rank, and left out on all that recorded the same steps."""
    excluded_cut_off: int = 0
    """Marks that never closed while recorded, and all that lie after the place where a half-written file ends."""
    excluded_empty: int = 0
    """Steps in which no device works and that launch nothing."""
    excluded_work_lost: int = 0
    """Steps that made launches whose work is not in the recording, and those that such steps cut off from the longest
    row of steps without them; none if no two steps in a row are whole."""
    on_device: bool = False
    """If the host is ahead of the device, the steps are those of the device: from the first start of the work that a
    step launched (on the stream with most work) to that of the next step, the last to the end of its work. The host is
    ahead if the device, when the host launches the first work of a step, still works for more than a tenth of a step on
    what was launched before (median; of one step: if its work ends so much later than its mark). True if this holds for
    any rank."""
    duration: Spread | None = None
    """Of the counted steps of all ranks. A step lasts from the start of its mark to the start of the next mark; the
    last one lasts to the end of its mark."""
    mean_ns: int | None = None
    """Their mean: of one rank its window over the number of its steps."""
    between_ns: int | None = None
    """The part of that mean that lies between the marks: from the end of a mark to the start of the next. 0 for steps
    of the device."""
    per_rank: list[RankSteps] = []
    """Each rank's."""
    straggler_score: float | None = None
    """Slowest rank's median over the median of the ranks' medians. Null with one rank."""
    slowest_rank: int | None = None
    """That rank."""


class BeforeSteps(SummaryPart, kw_only=True):
    """What passed in one process from the start of its recording to its first step. The parts are lengths of unions on
    its host and devices; a moment counts for the first part below that has it, so they add up to `duration_ns`."""

    rank: int | None
    """Null if the trace does not say."""
    recorded_ns: int
    """From the first to the last moment that was recorded of the process, on its host or a device."""
    ended_by: str
    """`step`: the first marked step; `period`: nothing marks steps, and the first period of a kernel begins; `work`:
    there is no period either, and the host's launches begin that lead without a pause to the first matrix product
    (without products to the first kernel); `end`: no kernel ran."""
    duration_ns: int
    """From the recording's start to that moment."""
    copies_ns: int = 0
    """Copies from the host to devices, and the calls that made them."""
    capture_ns: int = 0
    """Captures of CUDA graphs."""
    compile_ns: int = 0
    """Ranges, operators and functions of torch.compile, Inductor and Triton that compile or tune."""
    meeting_ns: int = 0
    """Ranges, operators and functions in which ranks meet: init_process_group, ncclCommInitRank, a rendezvous."""
    first_use_ns: int = 0
    """Other calls of the device's library of at least 0.1 ms that neither copy nor wait."""
    data_ns: int = 0
    """Loading of data, as in `idle_causes`."""
    model_ns: int = 0
    """Ranges, operators and functions that make a model or load its weights."""
    imports_ns: int = 0
    """Ranges and functions of Python's imports."""
    device_ns: int = 0
    """Other work of devices (on a CPU, of operators)."""
    unknown_ns: int = 0
    """The rest: nothing that was recorded says what it is."""
    largest: dict[str, str] = {}
    """Of each part the name with most of its time."""
    copied_bytes: int = 0
    """Of the copies."""
    pageable_bytes: int = 0
    """Of these, from memory that is known to be pageable."""
    copying_ns: int = 0
    """How long devices copied them: the length of the union."""


class TimeSplit(SummaryPart, kw_only=True):
    """Where one stretch of one device's time went. Lengths of unions of intervals. Exactly:
    window = compute + exposed communication + exposed memory + idle."""

    window_ns: int
    """Length of the window."""
    compute_ns: int
    """U(compute)."""
    communication_ns: int | None
    """U(communication)."""
    exposed_communication_ns: int | None
    """U(communication − compute)."""
    overlapped_communication_ns: int | None
    """U(communication ∩ compute)."""
    memory_ns: int
    """U(copies and sets), without copies by which NCCL carries out a collective: they are communication."""
    exposed_memory_ns: int
    """U(memory − compute − communication)."""
    idle_ns: int | None
    """window − U(compute ∪ communication ∪ memory)."""


class KindTime(SummaryPart, kw_only=True):
    """One kind of work on one device, or in the job's table on all of them."""

    kind: str
    """See *Kinds* above."""
    precision: str | None = None
    """fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8."""
    count: int
    """Events that start in the window."""
    duration_ns: int
    """Sum of their durations."""
    share: float
    """Of the sum over all kinds."""


class IdleCause(SummaryPart, kw_only=True):
    """Every idle nanosecond has exactly one cause. A gap ends with an event. Until that event was launched, the host is
    the cause."""

    cause: str
    """`data loading`: the main thread is inside a data-loading range, or a function or operator that loads data, and
    not in a blocking copy.
    `garbage collection`: else, Python's collector runs. `profiler`: else, the profiler does its own work. `graph
    capture`: else, a CUDA graph is captured or made. Else by a blocking or long API call of the main thread or of one
    that launches work: `synchronisation` (also a copy for `.item()`), `blocking copy`, `allocation`, `first use` (code
    is loaded, or a kernel's first launch takes over 1 ms). `launch-bound`: else, launches follow one another: their
    distance is at most eight times the median distance between launches of the process, but not less than 50 us or more
    than 500 us (CPU: the program is inside a range and between two operators, which is Python; shown as `between
    operators`). A short rest after a blocking call is that call's. `host work`: else, the host launches nothing for
    longer, and something recorded says what it does. `not recorded`: else, until the next launch and its usual latency.
    `communication`: launched, not started, and it is a communication kernel (CPU: inside a send, a receive or a `c10d`
    call). `other`: launched and waiting for another stream, or the launch is unknown (CPU: under no range)."""
    duration_ns: int
    """Sum over gaps."""
    share: float
    """Of all idle time."""


class HostActivity(SummaryPart, kw_only=True):
    """What the host of one process did while a device had no work and the host was the reason. The largest 20 rows of
    each process, each at least 0.2 % of its device's window."""

    cause: str
    """As in `idle_causes`."""
    what: str | None
    """The most specific name that was recorded: a call, an operator, a Python function, a sampled function, a call of
    the system, that the thread is on no core, a range. Null: nothing was recorded there, or launches followed one
    another."""
    kind: str
    """What `what` names: `call`, `operator`, `python`, `sample`, `os call`, `wait`, `range`, `collector`, `profiler`.
    Else empty."""
    call: str | None = None
    """The call of the device's library, if it is the reason."""
    operator: str | None = None
    """The outermost operator that covers half of the time or more."""
    range: str | None = None
    """The innermost range that covers half of the time or more, step marks left out; its label."""
    where: CodeLocation | None = None
    """The innermost function of the user's own code that covers nine tenths of the time; without such a function, the
    innermost one of a framework (transformers, vLLM) that does, else of any code."""
    innermost: CodeLocation | None = None
    """The innermost function of any code in which half of the row's time or more passed. A function that is not Python
    has an empty file."""
    innermost_ns: int | None = None
    """The time in that function."""
    phase: str = "other"
    """Of training, by the range around it (CPU and launches: as for phases)."""
    rank: int | None
    """Of its process."""
    device: int
    """The device without work."""
    idle_ns: int
    """Sum in the window."""
    count: int
    """Stretches."""
    longest_ns: int
    """The longest of them."""
    first_ns: int
    """Where the first one begins, on the trace's clock."""


class Gap(SummaryPart, kw_only=True):
    """One of the longest stretches in which the device did nothing."""

    start_ns: int
    """On the trace's clock."""
    duration_ns: int
    """Length."""
    cause: str
    """The cause of its largest part."""
    what: str | None = None
    """What the host did in most of that part, as in `host_activities`."""
    where: CodeLocation | None = None
    """Where in the program, as in `host_activities`."""
    range: str | None = None
    """Innermost range of the main thread at its middle."""
    before: str | None = None
    """The event that ended last before it."""
    after: str | None = None
    """The event that ended it."""


class StepSplit(TimeSplit, kw_only=True):
    """The split of one counted step."""

    step: str
    """`step 7` by the training's own number if ranges count in the marks; else its mark's name."""


class Device(TimeSplit, kw_only=True):
    """One device of one process, with the split of its window."""

    rank: int | None
    """Of its process."""
    device: int
    """Index within the host, as CUDA numbers it; if processes of one nsys report number GPUs differently, as nsys
    does."""
    host: str | None = None
    """If recorded."""
    name: str | None = None
    """The device's name."""
    source: str
    """The file."""
    pid: int | None = None
    """Its process."""
    device_kind: str = "gpu"
    """`gpu`, or `cpu` if operators take the place of kernels."""
    gpu_events: int
    """All device events of the recording (CPU: the pieces into which operators are cut by those they call)."""
    kernels: int
    """The kernels among them (CPU: operators)."""
    overlap_fraction: float | None = None
    """U(communication ∩ compute) / U(communication): HolisticTraceAnalysis' definition. Null without communication."""
    busy_fraction: float | None = None
    """1 − idle / window."""
    work_after_window_ns: int = 0
    """U of what was launched before the window's end and ran after it."""
    steps: list[StepSplit] = []
    """The split of each counted step."""
    kinds: list[KindTime] = []
    """Kinds of work."""
    idle_causes: list[IdleCause] = []
    """Idle time by cause."""
    longest_gaps: list[Gap] = []
    """The ten longest idle stretches."""
    metric_averages: list[MetricAverage] = []
    """nsys GPU counters."""
    counters: list[CounterOverTime] = []
    """[Some of them over time](#counterovertime), which pictures of the page draw."""
    peak_memory_bytes: int | None = None
    """Most memory that this process had allocated. nsys: null unless its first call to CUDA was recorded, because the
    memory that it held before is not known."""


class PhaseTime(SummaryPart, kw_only=True):
    """Device time by the phase of training that launched it, all devices."""

    phase: str
    """Forward, backward, optimizer, data loading, send/recv, evaluation, other: the innermost range with such a name
    around the launch (CPU: around the operator). If no range of backward was recorded, autograd's operators show it,
    and what the program runs before them is forward. Evaluation, where no range tells it, is a batch of PyTorch's
    DataLoader that is put through the model (at least half as many launches as in a forward pass) without a backward
    pass before the next batch, in some of the steps with a backward pass and not in all. Between steps: launched
    between the marks of two steps, and not while data was loaded."""
    kernels: int
    """Device events (CPU: operators and collectives) that start in the window."""
    duration_ns: int
    """Sum of their durations."""
    compute_ns: int | None
    """The part of that sum that is compute. Null if CUDA graphs were recorded whole."""
    communication_ns: int | None
    """The part of that sum that is communication. Null if CUDA graphs were recorded whole."""
    share: float
    """Of the sum over all phases."""
