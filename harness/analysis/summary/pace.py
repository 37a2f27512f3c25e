"""How the pace of steps changed, and which ranks and nodes are behind. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class PaceChange(SummaryPart, kw_only=True):
    """A step from which on the job's steps are longer or shorter, by the training's own clock, in all its steps without
    those in which a profiler worked. The job's step is the median over ranks. Slow steps in a period, slow steps at the
    start, and steps that become longer little by little over hundreds of steps are none.

    **Method.** The medians of the 24 steps before and after each step are compared, in trainings of 60 steps and more.
    A change is where they differ most, if they differ by more than 6 % of the median step and five spreads. The spread
    is that of medians of 12 steps side by side in the whole training (1.4826 median absolute deviations of their
    difference), which is how far they are apart by chance. Its step is the one from which the sum of absolute
    deviations from both medians is least. A change must be as large between the medians of up to 200 steps before and
    after it. The ranks are those whose own time (their step without waiting for others) changed, by its medians before
    and after, at least half as much as that of the rank that changed most.

    **How often it is right.** In 150 simulated trainings of 150 to 1000 steps with noise of many kinds 40 % of the
    changes by 8 %, 80 % of those by 15 %, 96 % of those by 20 % and all by 30 and 60 % are found. 99 % of these are
    right within two steps, and 99 % have the right ranks. One of 150 steady ones had a change. A change that is smaller
    than the noise of the steps is not found. Steps do change their pace where other programs use the machine, and where
    the C library gives memory back to the kernel: `evidence` then says that threads waited for cores, or counts page
    faults."""

    step: int
    """The first step of the new pace."""
    last_step: int | None = None
    """The last step of the new pace. Null: to the end."""
    before_ns: int
    """Median step of up to 200 steps before."""
    after_ns: int
    """Median step of up to 200 steps after."""
    ratio: float
    """After / before."""
    ranks: list[int]
    """The ranks whose own time changed: their step without the phases in which they wait for other ranks (backward, and
    phases with collectives in the traces; on GPUs also the time in no phase). On CPUs, backward counts up to
    the start of its last collective, where PyTorch records that and ranks wait in backward only. All ranks if `named`
    is false."""
    named: bool
    """Whether their own time shows it. A rank that stalls where the others wait for it cannot be named."""
    phase: str | None = None
    """The phase that changed by at least half of it: data, forward, backward, optimizer. Null if none did."""
    evidence: str = ""
    """The own times before and after, in words."""


class SlowestRank(SummaryPart, kw_only=True):
    """Which rank the others wait for, by the ranks' own time in all steps that were not profiled (as in
    `pace_changes`). A rank stands out if more time is spent in waiting for it than for all the others: in ten equal
    parts of the steps, the median of this difference is more than three spreads (1.4826 median absolute deviations)
    above zero."""

    kind: str
    """`always` (clearly the slowest in 90 % of the steps), `often` (30 %), `rarely`, `in turns` (no rank stands out),
    `never` (the median rank waits less than 3 % of a step)."""
    rank: int | None = None
    """Null if no rank stands out."""
    share: float
    """Of the steps, in which the rank is clearly the slowest: by 5 % of a step."""
    costs_ns: int
    """Per step: what a step would gain if the rank was only as slow as the next one. `in turns`, `never`: how long the
    median rank waits for the slowest one."""
    step_ns: int
    """The job's median step, of the same steps."""


class PacePlace(SummaryPart, kw_only=True):
    """One node, or one rank if ranks are compared. A share above zero is slower than the median place."""

    node: str | None = None
    """Its host. Null if no trace names it."""
    switch: str | None = None
    """The switch above it."""
    rank: int | None = None
    """The rank; of a node the rank that is farthest behind."""
    step_share: float
    """Its step time over the median place's, minus one: median over the steps."""
    own_share: float | None = None
    """The same of own work. Null if not known."""


class PaceOutlier(SummaryPart, kw_only=True):
    """A place that is behind the others by the rule of [Pacing](#pacing)."""

    place: str
    """`node` or `rank`."""
    node: str | None = None
    """Its node."""
    switch: str | None = None
    """The switch above it."""
    rank: int | None = None
    """The rank, or the node's slowest."""
    measure: str
    """`step`, or `own work` if its step is not behind."""
    behind_share: float
    """By how much it is behind the median place, median over the steps."""
    steps_behind: int
    """Steps in which it is at least 5 % behind."""
    steps: int
    """Steps that were compared."""


class Pacing(SummaryPart, kw_only=True):
    """The steps over ranks, and who is behind. Two ranks' steps are the same step if their marks have the
    same number (`ProfilerStep#7`, `iteration_7`). If marks do not count up, or steps are a kernel's periodicity,
    steps are matched from the last one backwards. Window: the counted steps that at least half of the ranks have;
    of more than 400 these many, evenly spaced. Ranks whose steps were found in another way than others' are not
    compared.

    - **Step time** of a rank in a step over that of the median rank of the same step, minus one. The median of an
      even number is the faster of the two, so of two the faster one is the measure of the slower. Ranks of
      different pipeline stages are each compared within their own stage.
    - **Own work** is the step minus its exposed communication, on the device of the rank with most of it. Ranks that
      meet in every step wait for each other, so that all their steps are as long as the slowest rank's. Own work shows
      the rank that makes them wait. Not known if communication is not.
    - **A node** has in each step the largest of its ranks' values, compared with the median node's.

    **Who is behind.** Nodes are tested if there are at least two, and of fewer than 8 nodes also the ranks, for
    either measure. A place is reported if in at least 90 % of the steps it is 5 % and three spreads behind the median
    place. The spread is 1.4826 median absolute deviations of the values of single steps: of all places, so that of two
    equal halves none is reported, or of fewer than 8 places the place's own. It takes five steps, and 40 values: of 2
    nodes 20 steps, of 8 five. In simulated healthy jobs (normal, exponential, log-normal and Cauchy noise of 2 to 30 %
    of a step; 2 to 250 nodes, 5 to 50 steps, 60 to 300 jobs of each) at most 0.3 % reported a place, and of 250 nodes
    with Cauchy noise in five steps 2 of 60. This cannot see a node that is slow in less than nine of ten steps, or by
    less than 5 %.

    **Switches** are Slurm's: each node's task writes `SLURM_TOPOLOGY_ADDR` into the run (`node-status/`), which names
    them if the cluster has `topology/tree`."""

    places: list[PacePlace] = []
    """One entry per node if there are at least 8 nodes, else one per rank; of more than 1024 those farthest from the
    median."""
    outlier_count: int = 0
    """Places that are behind."""
    outliers: list[PaceOutlier] = []
    """The first 64 of them, the farthest first."""
