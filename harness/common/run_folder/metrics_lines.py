"""The lines of a rank's metrics file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from harness.common.run_folder.profile_window import ProfileWindow

_COUNTS = ("int", "int | None")


@dataclass(frozen=True)
class StartLine:
    """What was trained, how and with what; the file's first line, together with its `RankProcess`. None: not known, as
    in a training that is not ours."""

    rank: int
    world_size: int
    local_rank: int
    backend: str | None
    device: str
    model: str | None
    parameters: int | None
    weights: str | None  # "random", or the checkpoint's folder
    dtype: str | None
    seq_length: int | None
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    flops_per_token: float | None
    peak_flops_per_s: float | None  # measured on this device, in `dtype`
    window: ProfileWindow
    trained_parameters: int | None  # where not all are: an adapter's


@dataclass(frozen=True)
class RankProcess:
    """Where a rank runs. host_cpu: the name of its host's processor. peak_memory_of: "device", or without a GPU
    "process". host_limit_bytes: what all processes of its cgroup may use, else the machine's memory.
    device_limit_bytes: the GPU's memory."""

    node: int
    host: str
    pid: int
    device_name: str
    host_cpu: str
    peak_memory_of: str
    host_limit_bytes: int | None
    device_limit_bytes: int | None


@dataclass(frozen=True)
class StepLine:
    """One step of one rank. Parts are host times: on CUDA the launching; only `step_ns` waits for the device.

    tokens: processed by this rank in this step, with padding. synced: the step ended in an optimizer step.
    """

    step: int
    phase: str
    unix_ns: int
    step_ns: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    evaluation_ns: int
    loss: float | None
    lr: float | None
    tokens: int | None
    samples: int | None
    synced: bool
    peak_memory_bytes: int


@dataclass(frozen=True)
class OwnLine:
    """Of steps that ended lately: their numbers, and nanoseconds without waiting for other ranks (event `own`)."""

    rank: int
    steps: list[int]
    own_ns: list[int]


@dataclass(frozen=True)
class StepCounters:
    """Also on a step's line: what the training's thread lost to others since the line before.

    core_wait_ns: it was ready to run and had no core. collector_ns: Python collected garbage. written_bytes: by the
    whole process, to files of a disk. page_faults: of the whole process, for memory that it had not used or had given
    back to the kernel. continued: how often the process went on after it had been stopped, as a batch system that
    suspends jobs stops it. cores: those that the thread may use now, as in "0-3,8". host_memory_bytes: of the process,
    without the pages of files; device_memory_bytes: of the tensors on its GPU, at the step's end. host_free_bytes: of
    that of the process, what it has freed and the C library keeps, looked at now and then. workers_memory_bytes: of
    the processes that load its data, each page divided among those that share it; workers_mapped_bytes: each page
    whole; files, threads: how many are open; these four are counted a few times a second. None: the system does not
    say it, or it was not looked at.
    """

    core_wait_ns: int | None
    collector_ns: int
    written_bytes: int | None
    page_faults: int
    continued: int | None
    cores: str | None
    host_memory_bytes: int | None
    host_free_bytes: int | None
    device_memory_bytes: int | None
    workers_memory_bytes: int | None = None
    workers_mapped_bytes: int | None = None
    files: int | None = None
    threads: int | None = None


def as_ranges(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes lists of cores.

    >>> as_ranges([0, 1, 2, 8])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def how_many(text: str) -> int:
    """How many numbers `as_ranges` wrote.

    >>> how_many("0-2,8")
    4
    """
    ends = [[int(number) for number in run.split("-")] for run in text.split(",")]
    return sum(run[-1] - run[0] + 1 for run in ends)


@dataclass(frozen=True)
class EndLine:
    """How the training ended: "completed", "stopped" on request or "failed", and why if not completed."""

    rank: int
    status: str
    reason: str | None
    steps: int


@dataclass(frozen=True)
class ObservedLine:
    """Before the `end`, of a training that is not ours: what ended its steps ("optimizer", "backward", "forward"; None:
    it had none), and sentences about what was left out and why."""

    rank: int
    steps_ended_by: str | None
    notes: list[str]


STEP_COUNTS = tuple(f.name for line in (StepLine, StepCounters) for f in fields(line) if f.type in _COUNTS)
START_FIELDS = tuple(field.name for line in (StartLine, RankProcess) for field in fields(line))
