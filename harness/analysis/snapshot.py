"""What a memory snapshot of PyTorch says, as numbers: who held the memory at the peak and at the end, which lines grow,
and why memory ran out. Must not know files.

The snapshot has the state at its end, and the events before it. So what was there when the recording began follows from
the end, backward; from there the events are replayed forward. A block is alive until the allocator may use it again
(`free_completed`). Bytes of lines are those that were asked for, as the events have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from harness.analysis.snapshot_numbers import DeviceMemory, GrowingLine, LineMemory, OutOfMemory, SnapshotNumbers
from harness.traces.cuda_snapshot import ACTIVE, PENDING, AllocatorEvent, CodeLine, DeviceSnapshot, cuda_snapshot

_ROUNDED_BYTES = 512  # the allocator's smallest unit
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}  # by `size`
# A line grows if blocks that it asked for in nearly each tenth of the recording are still there at its end. What comes
# and goes with a step is there from its last part only, and weights from its first.
_SLICES, _FEWEST_SLICES, _FEWEST_BLOCKS = 10, 9, 20


class _Held(NamedTuple):
    line: CodeLine | None
    requested_bytes: int
    size_bytes: int
    since_us: int = -1  # -1: from before the recording


class _Replay:
    """The memory of a device while its events are replayed."""

    def __init__(self, snapshot: DeviceSnapshot) -> None:
        self.events = snapshot.events
        self.ends = {block.address: block for block in snapshot.blocks if block.state in (ACTIVE, PENDING)}
        # A recording can leave out one of the two.
        self._freed = "free_completed" if any(e.action == "free_completed" for e in self.events) else "free_requested"
        self.alive = {address: _Held(b.line, b.requested_bytes, b.size_bytes) for address, b in self.ends.items()}
        self.reserved_bytes = sum(block.size_bytes for block in snapshot.blocks)
        for event in reversed(self.events):
            if event.action == "alloc":
                self.alive.pop(event.address, None)
            elif event.action == self._freed:
                self.alive.setdefault(event.address, self._held(event))
            self.reserved_bytes -= _RESERVED.get(event.action, 0) * event.size_bytes
        self.requested_bytes = sum(held.requested_bytes for held in self.alive.values())
        self.allocated_bytes = sum(held.size_bytes for held in self.alive.values())

    def _held(self, event: AllocatorEvent) -> _Held:
        """The block of an event. It is larger than what was asked for: as the block that is at its place at the end, if
        that is of the same request, else as the allocator rounds at least."""
        end = self.ends.get(event.address)
        rounded = -(-event.size_bytes // _ROUNDED_BYTES) * _ROUNDED_BYTES
        size = end.size_bytes if end is not None and end.requested_bytes == event.size_bytes else rounded
        return _Held(event.line, event.size_bytes, size, event.time_us)

    def forward(self) -> Iterator[tuple[int, AllocatorEvent]]:
        """Each event with its number, after it was applied."""
        for number, event in enumerate(self.events):
            before = self.alive.pop(event.address, None) if event.action in ("alloc", self._freed) else None
            after = self._held(event) if event.action == "alloc" else None
            if after is not None:
                self.alive[event.address] = after
            self.requested_bytes += (after.requested_bytes if after else 0) - (before.requested_bytes if before else 0)
            self.allocated_bytes += (after.size_bytes if after else 0) - (before.size_bytes if before else 0)
            self.reserved_bytes += _RESERVED.get(event.action, 0) * event.size_bytes
            yield number, event

    def lines(self) -> list[LineMemory]:
        """What is alive, by line, the largest first."""
        return _by_line(self.alive.values())

    def growing(self) -> list[GrowingLine]:
        """After the replay: the lines that grow, the fastest first."""
        begin_us, end_us = self.events[0].time_us, self.events[-1].time_us
        stayed = [held for held in self.alive.values() if held.line and begin_us <= held.since_us <= end_us]
        slices: dict[CodeLine | None, set[int]] = {held.line: set() for held in stayed}
        for held in stayed:
            slices[held.line].add((held.since_us - begin_us) * _SLICES // (end_us - begin_us + 1))
        steady = {line for line, found in slices.items() if len(found) >= _FEWEST_SLICES}
        return [
            GrowingLine(
                file=each.file,
                line=each.line,
                function=each.function,
                grown_bytes=each.bytes,
                bytes_per_s=each.bytes * 1e6 / (end_us - begin_us),
            )
            for each in _by_line(held for held in stayed if held.line in steady)
            if each.block_count >= _FEWEST_BLOCKS
        ]


def _by_line(blocks: Iterable[_Held]) -> list[LineMemory]:
    size, count = Counter[CodeLine | None](), Counter[CodeLine | None]()
    for held in blocks:
        size[held.line] += held.requested_bytes
        count[held.line] += 1
    return [LineMemory(**_place(line), bytes=amount, block_count=count[line]) for line, amount in size.most_common()]


def numbers_of(data: object, file_bytes: int) -> SnapshotNumbers:
    """The numbers of the content of a file of this size. Raises UnfitError: it is something else, or damaged."""
    return SnapshotNumbers(devices=list(map(_device, cuda_snapshot(data, file_bytes))))


def _device(snapshot: DeviceSnapshot) -> DeviceMemory:
    replay, events = _Replay(snapshot), snapshot.events
    is_recorded = any(event.action == "alloc" or event.action.startswith("free_") for event in events)
    begin_us = events[0].time_us if events else 0
    peak_bytes, peak_number, ran_out = replay.requested_bytes, -1, list[OutOfMemory]()
    for number, event in replay.forward():
        if replay.requested_bytes > peak_bytes:
            peak_bytes, peak_number = replay.requested_bytes, number
        if event.action == "oom":
            ran_out.append(_out_of_memory(event, replay, begin_us))
    blocks = snapshot.blocks
    free = [block.size_bytes for block in blocks if block.state not in (ACTIVE, PENDING)]
    return DeviceMemory(
        device=snapshot.device,
        allocated_bytes=sum(block.size_bytes for block in blocks if block.state == ACTIVE),
        pending_bytes=sum(block.size_bytes for block in blocks if block.state == PENDING),
        reserved_bytes=sum(block.size_bytes for block in blocks),
        unused_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        at_end=_Replay(snapshot._replace(events=[])).lines(),
        event_count=len(events),
        recorded_s=max(events[-1].time_us - begin_us, 0) / 1e6 if events else 0.0,
        peak_bytes=peak_bytes if is_recorded else None,
        peak_s=(events[max(peak_number, 0)].time_us - begin_us) / 1e6 if is_recorded else None,
        at_peak=_after(snapshot, peak_number) if is_recorded else [],
        growing=replay.growing() if is_recorded else [],
        out_of_memory=ran_out,
        contradicting_blocks=len(replay.alive.keys() ^ replay.ends.keys()),
    )


def _after(snapshot: DeviceSnapshot, number: int) -> list[LineMemory]:
    """What was alive after this event; -1: when the recording began."""
    replay = _Replay(snapshot)
    if number >= 0:
        next(each for each, _ in replay.forward() if each == number)
    return replay.lines()


def _out_of_memory(event: AllocatorEvent, replay: _Replay, begin_us: int) -> OutOfMemory:
    unused = max(replay.reserved_bytes - replay.allocated_bytes, 0)
    return OutOfMemory(
        **_place(event.line),
        time_s=(event.time_us - begin_us) / 1e6,
        asked_bytes=event.size_bytes,
        device_free_bytes=event.device_free_bytes,
        allocated_bytes=replay.allocated_bytes,
        reserved_bytes=replay.reserved_bytes,
        unused_bytes=unused,
        is_fragmentation=event.size_bytes <= unused,
    )


def _place(line: CodeLine | None) -> dict[str, Any]:
    return {} if line is None else line._asdict()
