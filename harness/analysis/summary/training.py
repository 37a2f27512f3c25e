"""What the training said of itself, where its job's time went, and beside the plan. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import CodeLocation, SummaryPart
from harness.analysis.summary.replay import LineShare


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
    """Of Python, the packages that train, and on a GPU of CUDA, NCCL and the driver. `environments` has all."""
    status: str | None = None
    """completed, stopped, failed. Null: the file has no end."""
    reason: str | None = None
    """Why it stopped."""
    host_limit_bytes: int | None = None
    """What its cgroup may use, else the machine's memory."""
    device_limit_bytes: int | None = None
    """Its GPU's memory."""
    steps_ended_by: str | None = None
    """Of a training that is not the harness's: the call that ends a step (`optimizer`, `backward`, `forward`).
    Null: not known, or the training marks its own steps."""
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
    """Allocated on the GPU, or resident in the process on a CPU: the most, less `profiler_memory_bytes`."""
    sampled_peak_bytes: int | None = None
    """The most memory at a look at the main thread (25 a second in steps): allocated on the GPU, else resident without
    the pages of files. Of your own training."""
    sampled_peak_line: CodeLocation | None = None
    """The user's line then."""
    typical_memory_bytes: int | None = None
    """The median of the same after each step."""
    profiler_memory_bytes: int | None = None
    """By how much the steps with the profiler raise it. Null without steps before them."""
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


class JobTimePart(SummaryPart, kw_only=True):
    """One part of the job's time. The `duration_ns` of all parts add up to the job's elapsed time."""

    part: str
    """`prolog`, `job start`, `launch`, `imports`, `meeting`, `model`, `data`, `other`, `compilation`, `first step`,
    `steps`, `evaluation`, `checkpoints`, `traces`, `tail`, `ending` or `conversion`."""
    duration_ns: int
    """Time of the job in it: at each moment the job is where the rank is that is furthest behind."""
    share: float
    """Of the job's elapsed time."""
    rank: int | None = None
    """The rank with most time in it; of `meeting` the one that came last, if it is known. Null: not of a rank."""
    rank_ns: int | None = None
    """That rank's own time in it; of one that came last, its time in other code before."""
    what: str | None = None
    """What most of it is, as the package that is imported."""
    where: CodeLocation | None = None
    """The user's line in which that rank spent most of it."""


class JobImport(SummaryPart, kw_only=True):
    """A package whose import took half a second or longer in a rank, without the packages in it that also did."""

    package: str
    """Its name."""
    duration_ns: int
    """In that rank."""
    rank: int
    """The rank in which it took longest."""
    where: CodeLocation | None = None
    """The user's line that imports it."""


class JobTime(SummaryPart, kw_only=True):
    """Where the elapsed time of the job went, from the start of its script, or since Slurm gave it its nodes, to its
    end."""

    elapsed_ns: int
    """Of the job; of a program that no job of ours started, of its ranks."""
    queue_ns: int | None = None
    """From the submission to the start of the elapsed time, of which it is no part."""
    useful_share: float
    """`steps` / elapsed time (goodput)."""
    parts: list[JobTimePart] = []
    """In the order of a job."""
    imports: list[JobImport] = []
    """The longest first."""
    lines_by_rank: dict[int, list[LineShare]] = {}
    """By rank: lines of the user's code in which its main thread was in steps while it neither loaded data nor was in
    a forward pass, a backward pass or the optimizer, with their shares of that time, the largest first."""
    gpu_time_ns: int | None = None
    """GPUs of the job × elapsed time; a GPU hour is 3.6e12 of it. Null without GPUs."""
    energy_joules: float | None = None
    """Σ `monitor.energy_joules`. Null if one is not given."""


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
