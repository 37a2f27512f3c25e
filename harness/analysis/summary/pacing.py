"""How evenly a job's ranks go through the same steps: per node, per step, and who is behind. Fields only."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class PacePlace(SummaryPart):
    """One node, or one rank if ranks are compared. A share above zero is slower than the median place."""

    node: str | None = None
    """Its host. Null if no trace names it."""
    switch: str | None = None
    """The switch above it."""
    rank: int | None = None
    """The rank; of a node the rank that is farthest behind."""
    ranks: int = 1
    """Its number of ranks."""
    first_lag_ns: int | None = None
    """Behind the first rank at the start of the first common step; of the last of its ranks."""
    lag_ns: int | None = None
    """The same at the end of the last common step: its progress."""
    variation_fraction: float | None = None
    """Variation of its step times, the largest of its ranks: its consistency. Null with one step."""
    step_share: float
    """Its step time over the median place's, minus one: median over the steps."""
    own_share: float | None = None
    """The same of own work. Null if not known."""


class PaceOutlier(SummaryPart):
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


class PaceRow(SummaryPart):
    """A cell is null if no rank of the row has the step. A layer is empty if no cell of it is known."""

    name: str
    """The rank, the node, or the first and the last node."""
    node: str | None = None
    """Its first node."""
    switch: str | None = None
    """The switch above it."""
    step_share: list[float | None] = Field(default_factory=list)
    """Step time over the median row's, minus one."""
    own_share: list[float | None] = Field(default_factory=list)
    """The same of own work."""
    lag_us: list[int | None] = Field(default_factory=list)
    """Behind the first rank at the step's end, µs. Empty if clocks cannot be aligned."""


class PaceHeat(SummaryPart):
    """The picture: at most 256 rows of at most 100 columns, so 25,600 cells in each of three layers. A row is a
    rank. Of more than 256 ranks a row is a node, with its slowest rank in each step; of more than 256 nodes it is
    as many neighbouring nodes of one switch as are needed."""

    row: str
    """What a row is: `rank`, `node`, `2 nodes` …"""
    steps: list[int]
    """The number of each column's first step."""
    steps_per_column: int = 1
    """How many steps a column is the mean of."""
    rows: list[PaceRow]
    """By switch, node and rank."""


class Pacing(SummaryPart):
    """Progress and consistency of the steps over ranks. Two ranks' steps are the same step if their marks have the
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
    - **Lag** of a rank: the end of the last step that all have, minus the earliest end of any rank, on clocks
      aligned by the ends of shared collectives (`clocks`). Null if a clock cannot be aligned.
    - **Variation**: the standard deviation of a rank's step times over their mean (n − 1 in the variance).

    **Who is behind.** Nodes are tested if there are at least two, and of fewer than 8 nodes also the ranks, for
    either measure. A place is reported if all three hold. (1) Its median over the steps is at least 5 % behind the
    median place. (2) Chance does not explain it: its standing in a step is the share of places at least as slow, k
    = ⌈0.8 n⌉ of n steps, q is the k-th smallest standing, and P(Binomial(n, q) ≥ k) times the number of places is
    at most 0.01. (If the places were alike and the steps independent, a standing would be uniform whatever the
    distribution of times; the factor is Bonferroni's correction.) (3) Of at least 8 places, it is 4 × 1.4826 median
    absolute deviations behind the median place, so that of two equal halves none is reported. Of 2 nodes it takes
    some 25 steps, of 8 five, of 250 three. In simulated healthy jobs (normal, exponential, log-normal and Cauchy
    noise of 2 to 30 % of a step; 2 to 250 nodes, 1 to 50 steps, 60 to 300 jobs of each) at most 1.7 % reported a
    place. This cannot see a node that is slow in less than four of five steps, or by less than 5 %.

    **Switches** are Slurm's: each node's task writes `SLURM_TOPOLOGY_ADDR` into the run (`node-status/`), which names
    them if the cluster has `topology/tree`. Else, and for traces outside of a run, rows are grouped by node only, and
    the page says so."""

    ranks: int
    """Ranks with steps."""
    nodes_count: int
    """Their nodes, as far as known."""
    switches_count: int
    """The switches above them; 0: not known."""
    steps: int
    """Compared steps."""
    place: str
    """What `places` are: `node` if there are at least 8 nodes, else `rank`."""
    step_ns: int
    """Median over ranks and steps."""
    own_ns: int | None = None
    """The same of own work. Null if not known."""
    places: list[PacePlace] = Field(default_factory=list)
    """One entry per place; of more than 1024 those farthest from the median."""
    outlier_count: int = 0
    """Places that are behind."""
    outliers: list[PaceOutlier] = Field(default_factory=list)
    """The first 64 of them, the farthest first."""
    heat: PaceHeat | None = None
    """The picture."""
