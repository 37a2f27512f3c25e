"""How evenly a job's ranks go through the same steps: per node, per step, and who is behind. Fields only."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class PacePlace(SummaryPart):
    """One node, or one rank where ranks are judged. Shares are of the middle place's step, above zero: slower."""

    node: str | None = None
    switch: str | None = None
    rank: int | None = None  # the rank; of a node its slowest
    ranks: int = 1
    first_lag_ns: int | None = None
    lag_ns: int | None = None
    variation_fraction: float | None = None
    step_share: float
    own_share: float | None = None


class PaceOutlier(SummaryPart):
    """A place that is behind the others, by the rule of docs/metrics.md. measure: `step`, or `own work`."""

    place: str  # "node": rank is its slowest; or "rank"
    node: str | None = None
    switch: str | None = None
    rank: int | None = None
    measure: str
    behind_share: float
    steps_behind: int
    steps: int


class PaceRow(SummaryPart):
    """A row of the picture, a cell for each column. A layer is empty where nothing of it is known."""

    name: str
    node: str | None = None
    switch: str | None = None
    step_share: list[float | None] = Field(default_factory=list)
    own_share: list[float | None] = Field(default_factory=list)
    lag_us: list[int | None] = Field(default_factory=list)


class PaceHeat(SummaryPart):
    """Rows by switch, node and rank, columns by step. A cell is the slowest rank of its row against the middle row,
    mean over the column's steps."""

    row: str  # what a row is: "rank", "node", "2 nodes" …
    steps: list[int]  # the number of each column's first step
    steps_per_column: int = 1
    rows: list[PaceRow]


class Pacing(SummaryPart):
    """The steps that the ranks have in common, held against each other."""

    ranks: int
    nodes_count: int
    switches_count: int
    steps: int
    place: str  # what the places are: "node" or "rank"
    step_ns: int
    own_ns: int | None = None
    places: list[PacePlace] = Field(default_factory=list)
    outlier_count: int = 0
    outliers: list[PaceOutlier] = Field(default_factory=list)
    heat: PaceHeat | None = None
