"""Who held the memory of a training that recorded it (`--memory-snapshot`). Fields only; no measurement."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class MemoryHolder(SummaryPart):
    """Blocks of one category that were asked for in one place."""

    category: str
    range: str
    module: str
    operator: str
    bytes: int
    block_count: int


class MemoryMoment(SummaryPart):
    """Who held what on one rank at one moment, and what the training did then."""

    rank: int
    time_ns: int
    step: str | None = None
    range: str
    module: str
    operator: str
    bytes: dict[str, int]
    block_count: int
    holders: list[MemoryHolder] = Field(default_factory=list)
    error: str | None = None

    @property
    def total_bytes(self) -> int:
        """Of all categories."""
        return sum(self.bytes.values())


class MemoryRank(SummaryPart):
    """One rank's peak and, on a GPU, its allocator when tensors had most."""

    rank: int
    device: str
    peak_bytes: int
    ran_out: bool = False
    complete: bool = True
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    fragmentation_bytes: int | None = None


class MemoryTimeline(SummaryPart):
    """Bytes of each category over time on one rank."""

    rank: int
    times_ns: list[int]
    bytes: dict[str, list[int]]
    steps: dict[str, int] = Field(default_factory=dict)


class Memory(SummaryPart):
    """The memory of a run: moments and timeline are of the rank with the highest peak, or that ran out first."""

    ranks: list[MemoryRank]
    peak: MemoryMoment | None = None
    failure: MemoryMoment | None = None
    timeline: MemoryTimeline | None = None
    unread_count: int = 0
