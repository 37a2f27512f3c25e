"""Where the elapsed time of a job went. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import CodeLocation, SummaryPart
from harness.analysis.summary.replay import LineShare


class JobTimePart(SummaryPart, kw_only=True):
    """One part of the job's time. The `duration_ns` of all parts add up to the job's elapsed time."""

    part: str
    """`prolog`, `job start`, `launch`, `imports`, `meeting`, `model`, `data`, `other`, `first step`, `steps`,
    `evaluation`, `checkpoints`, `traces`, `tail`, `ending` or `conversion`."""
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
    unknown: list[str] = []
    """What cannot be known, and why."""
