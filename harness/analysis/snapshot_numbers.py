"""What a memory snapshot of PyTorch says of each device: fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class AtLine(SummaryPart, kw_only=True):
    """A line of a program, as on the machine of the recording; null where it was not recorded."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


class LineMemory(AtLine, kw_only=True):
    """Blocks that one line asked for. bytes: as asked for, of all of them."""

    bytes: int
    block_count: int


class GrowingLine(AtLine, kw_only=True):
    """A line that asked for blocks all through the recording which were still there at its end: `grown_bytes`.
    bytes_per_s: by the time of the recording, since a snapshot knows no steps."""

    grown_bytes: int
    bytes_per_s: float


class OutOfMemory(AtLine, kw_only=True):
    """An allocation that failed, and what there was then. time_s: since the recording began.

    asked_bytes: as the allocator rounded it. device_free_bytes: what CUDA had left. allocated_bytes: in blocks, as
    large as they are at the end; of those that are gone then, as the allocator rounds at least. unused_bytes: what
    was reserved beside them. is_fragmentation: that would have been enough, in one piece.
    """

    time_s: float
    asked_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    unused_bytes: int
    is_fragmentation: bool


class DeviceMemory(SummaryPart, kw_only=True):
    """One device.

    At the end: `allocated_bytes` in blocks in use, rounded as the allocator does, `pending_bytes` in blocks that wait
    for another stream, `unused_bytes` in free blocks, the largest of which has `largest_free_bytes`.
    While it was recorded: peak_bytes is the most that was alive at once, as asked for; null without a recording.
    contradicting_blocks: alive by the events and not at the end, or the other way round; 0 in a whole recording.
    """

    device: int
    allocated_bytes: int
    pending_bytes: int
    reserved_bytes: int
    unused_bytes: int
    largest_free_bytes: int
    at_end: list[LineMemory]
    event_count: int
    recorded_s: float
    peak_bytes: int | None
    peak_s: float | None
    at_peak: list[LineMemory]
    growing: list[GrowingLine]
    out_of_memory: list[OutOfMemory]
    contradicting_blocks: int


class SnapshotNumbers(SummaryPart, kw_only=True):
    """A snapshot: the devices that have memory or events."""

    devices: list[DeviceMemory]
