"""The events of one task as blocks of Paraver records: bursts (a start event and an end event), states, lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.idle import COMMUNICATION, COMPUTE, MEMORY, NOT_WORK
from harness.export.objects import ParaverTask, RowKind
from harness.export.prv_labels import LAUNCH_TAG, MEMORY_TAG, EventType, Labels, ThreadState, memory_names, range_type
from harness.traces.trace import I32, I64, U8, Trace

Mask = NDArray[np.bool_]
CHUNK_LINES = 1 << 16
_PHASES = 8
_FOUR_DIGITS = np.array([list(b"%04d" % n) for n in range(10_000)], np.uint8)
_STATES = {
    COMPUTE: ThreadState.RUNNING,
    COMMUNICATION: ThreadState.GROUP_COMMUNICATION,
    MEMORY: ThreadState.MEMORY_TRANSFER,
}


@dataclass(frozen=True)
class RecordBlock:
    """n lines. `fields`: literal bytes, or a column of n integers ≥ 0. Sorted by (time, phase), then as given."""

    time_ns: I64
    phase: I64
    fields: Sequence[bytes | I64]

    def __len__(self) -> int:
        return len(self.time_ns)


def lines(blocks: Sequence[RecordBlock], chunk_lines: int = CHUNK_LINES) -> Iterator[bytes]:
    """The lines of all blocks in order, in pieces of at most `chunk_lines`. Times must be below 2^60."""
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        return
    key = np.concatenate([block.time_ns * _PHASES + block.phase for block in blocks])
    owner = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    first = np.cumsum([0, *(len(block) for block in blocks)])
    order = np.argsort(key, kind="stable")
    for low in range(0, len(order), chunk_lines):
        part = order[low : low + chunk_lines]
        yield _text(blocks, part, owner[part], first)


def _text(blocks: Sequence[RecordBlock], part_numbers: I64, owner: I64, first: I64) -> bytes:
    pieces = []
    for index in np.unique(owner).tolist():
        where = np.flatnonzero(owner == index)
        pieces.append((where, *_matrix(blocks[index].fields, part_numbers[where] - first[index])))
    width = max(characters.shape[1] for _, characters, _ in pieces)
    characters = np.zeros((len(part_numbers), width), np.uint8)
    used = np.zeros((len(part_numbers), width), np.bool_)
    for where, cells, mask in pieces:
        characters[where, : cells.shape[1]] = cells
        used[where, : cells.shape[1]] = mask
    return characters[used].tobytes()


def _matrix(fields: Sequence[bytes | I64], rows: I64) -> tuple[U8, Mask]:
    """Characters, [rows, width], and a mask of those that are part of the line."""
    parts = [_literal(each, len(rows)) if isinstance(each, bytes) else digits(each[rows]) for each in fields]
    cells, masks = zip(*parts, strict=True)
    return np.concatenate(cells, axis=1), np.concatenate(masks, axis=1)


def _literal(text: bytes, count: int) -> tuple[U8, Mask]:
    cells = np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text)))
    return cells, np.ones((count, len(text)), np.bool_)


def digits(values: I64) -> tuple[U8, Mask]:
    """Decimal digits of integers ≥ 0, right-aligned, [n, width], and a mask without the leading zeros."""
    width = len(str(int(values.max(initial=0))))
    groups = -(-width // 4)
    cells = np.empty((len(values), groups * 4), np.uint8)
    rest = values
    for group in range(groups - 1, 0, -1):
        rest, low = np.divmod(rest, 10_000)
        cells[:, 4 * group : 4 * group + 4] = _FOUR_DIGITS[low]
    cells[:, :4] = _FOUR_DIGITS[rest]
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    powers[-1] = 0  # a zero is one digit
    return cells[:, groups * 4 - width :], values[:, None] >= powers


# Order of records in the same nanosecond: ends first, then start and end of events without duration, then starts.
END, POINT_BEGIN, POINT_END, BEGIN, LINE = range(5)


def blocks_of(
    task: ParaverTask, number: int, cpu_of_row: Sequence[int], labels: Labels, end_ns: int
) -> list[RecordBlock]:
    """All records of task `number` (from 1) of a trace that ends at `end_ns`."""
    place = _TaskPlace(number, np.asarray(cpu_of_row, np.int64), task.offset_ns, end_ns)
    return [
        *_states(task, place),
        *_kernels(task, place, labels),
        *_communication(task, place, labels),
        *_memory(task, place, labels),
        *_calls(task, place, labels),
        *_ranges(task, place, labels),
        *_launches(task, place),
        *_metrics(task, place, labels),
    ]


@dataclass(frozen=True)
class _TaskPlace:
    """Where a task's records stand: its number, each row's device, its clock's offset, the trace's end."""

    task: int
    cpu: I64
    offset_ns: int
    end_ns: int

    def head(self, kind: bytes, row: I64) -> list[bytes | I64]:
        return [kind + b":", self.cpu[row], f":1:{self.task}:".encode(), row + 1, b":"]

    def bursts(self, row: I64, start_ns: I64, end_ns: I64, pairs: Sequence[tuple[int, I64]]) -> list[RecordBlock]:
        """An event record with `pairs` of (type, value) at the start, and one with zeros at the end."""
        start, end = start_ns + self.offset_ns, end_ns + self.offset_ns
        point = (start == end).astype(np.int64)
        values: list[bytes | I64] = []
        zeros: list[bytes | I64] = []
        for number, value in pairs:
            kind = f":{int(number)}:".encode()
            values += [kind, value]
            zeros += [kind, b"0"]
        head = self.head(b"2", row)
        return [
            RecordBlock(start, np.where(point, POINT_BEGIN, BEGIN), [*head, start, *values, b"\n"]),
            RecordBlock(end, np.where(point, POINT_END, END), [*head, end, *zeros, b"\n"]),
        ]


def _states(task: ParaverTask, place: _TaskPlace) -> list[RecordBlock]:
    """One state record per event, cut while another event of the row still runs: states must not overlap."""
    events = task.trace.events
    blocks = []
    for row in np.unique(task.event_row).tolist():
        here = np.flatnonzero((task.event_row == row) & (task.event_class != NOT_WORK))
        here = here[np.argsort(events.start_ns[task.events[here]], kind="stable")]
        start, end = events.start_ns[task.events[here]], events.end_ns[task.events[here]]
        before = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
        start = np.maximum(start, before)
        keep = np.flatnonzero(end > start)
        state = np.array([_STATES.get(c, ThreadState.IDLE) for c in range(NOT_WORK + 1)], np.int64)
        begin, stop = start[keep] + place.offset_ns, end[keep] + place.offset_ns
        fields = [*place.head(b"1", np.full(len(keep), row)), begin, b":", stop, b":"]
        fields += [state[task.event_class[here[keep]]], b"\n"]
        blocks.append(RecordBlock(begin, np.full(len(keep), BEGIN), fields))
    return blocks


def _kernels(task: ParaverTask, place: _TaskPlace, labels: Labels) -> list[RecordBlock]:
    chosen = np.isin(task.event_class, (COMPUTE, NOT_WORK))
    pairs = [_named(task, chosen, EventType.KERNEL, labels), _correlation(task, chosen)]
    return _event_bursts(task, place, chosen, pairs)


def _communication(task: ParaverTask, place: _TaskPlace, labels: Labels) -> list[RecordBlock]:
    """Collectives with recorded arguments have their size; the others only their name."""
    recorded = task.trace.collectives
    size_of = np.full(len(task.trace.events), -1, np.int64)
    size_of[recorded.event[recorded.event >= 0]] = np.maximum(recorded.bytes[recorded.event >= 0], 0)
    is_communication = task.event_class == COMMUNICATION
    size, blocks = size_of[task.events], []
    for known in (False, True):
        chosen = is_communication & ((size >= 0) == known)
        pairs = [_named(task, chosen, EventType.NCCL, labels), _correlation(task, chosen)]
        pairs += [(EventType.COLLECTIVE_BYTES, size[chosen])] * known
        blocks += _event_bursts(task, place, chosen, pairs)
    return blocks


def _memory(task: ParaverTask, place: _TaskPlace, labels: Labels) -> list[RecordBlock]:
    chosen = task.event_class == MEMORY
    numbers = labels.by_type[EventType.MEMORY]
    value = np.array([numbers[name] for name in memory_names(task)], np.int64)
    size = np.maximum(task.trace.events.bytes[task.events[chosen]], 0)
    pairs = [(EventType.MEMORY, value), (EventType.MEMORY_BYTES, size), _correlation(task, chosen)]
    return _event_bursts(task, place, chosen, pairs)


def _event_bursts(
    task: ParaverTask, place: _TaskPlace, chosen: NDArray[np.bool_], pairs: Sequence[tuple[int, I64]]
) -> list[RecordBlock]:
    events, index = task.trace.events, task.events[chosen]
    return place.bursts(task.event_row[chosen], events.start_ns[index], events.end_ns[index], pairs)


def _calls(task: ParaverTask, place: _TaskPlace, labels: Labels) -> list[RecordBlock]:
    calls = task.trace.calls
    pairs = [
        _translated(task.trace, calls.name[task.calls], EventType.API, labels),
        (EventType.CORRELATION, np.maximum(calls.correlation[task.calls], 0)),
    ]
    return place.bursts(task.call_row, calls.start_ns[task.calls], calls.end_ns[task.calls], pairs)


def _ranges(task: ParaverTask, place: _TaskPlace, labels: Labels) -> list[RecordBlock]:
    ranges, blocks = task.trace.ranges, []
    of_range = range_type(task, labels)
    for number in np.unique(of_range).tolist():
        chosen = of_range == number
        index = task.ranges[chosen]
        pairs = [_translated(task.trace, ranges.name[index], number, labels)]
        blocks += place.bursts(task.range_row[chosen], ranges.start_ns[index], ranges.end_ns[index], pairs)
    return blocks


def _launches(task: ParaverTask, place: _TaskPlace) -> list[RecordBlock]:
    """A line from each API call to the start of the event that it launched; its size is the bytes of a copy."""
    events = task.trace.events
    position = np.searchsorted(task.events, task.launched)
    target = task.event_row[position]
    is_memory = task.event_class[position] == MEMORY
    sent = events.launch_ns[task.launched] + place.offset_ns
    received = events.start_ns[task.launched] + place.offset_ns
    size = np.where(is_memory, np.maximum(events.bytes[task.launched], 0), 0)
    tag = np.where(is_memory, MEMORY_TAG, LAUNCH_TAG)
    fields: list[bytes | I64] = [
        *place.head(b"3", task.launch_row), sent, b":", sent, b":",
        place.cpu[target], f":1:{place.task}:".encode(), target + 1, b":", received, b":", received, b":",
        size, b":", tag, b"\n",
    ]  # fmt: skip
    return [RecordBlock(sent, np.full(len(sent), LINE), fields)]


def _metrics(task: ParaverTask, place: _TaskPlace, labels: Labels) -> list[RecordBlock]:
    rows = {row.a: index for index, row in enumerate(task.rows) if row.kind is RowKind.METRICS}
    blocks = []
    for metric in task.trace.metrics:
        if metric.device in rows:
            at = metric.time_ns + place.offset_ns
            keep = (at >= 0) & (at <= place.end_ns)
            row = np.full(int(keep.sum()), rows[metric.device])
            value = np.maximum(np.rint(metric.value[keep]), 0).astype(np.int64)
            kind = f":{labels.metrics[metric.name]}:".encode()
            fields = [*place.head(b"2", row), at[keep], kind, value, b"\n"]
            blocks.append(RecordBlock(at[keep], np.full(len(row), BEGIN), fields))
    return blocks


def _named(task: ParaverTask, chosen: NDArray[np.bool_], number: int, labels: Labels) -> tuple[int, I64]:
    return _translated(task.trace, task.trace.events.name[task.events[chosen]], number, labels)


def _translated(trace: Trace, name: I32, number: int, labels: Labels) -> tuple[int, I64]:
    """(type, value of each name). An unknown name (-1) has value 0."""
    values = labels.by_type[number]
    used, inverse = np.unique(name, return_inverse=True)
    numbers = [values[trace.names[n]] if n >= 0 else 0 for n in used.tolist()]
    return int(number), np.array(numbers, np.int64)[inverse]


def _correlation(task: ParaverTask, chosen: NDArray[np.bool_]) -> tuple[int, I64]:
    return EventType.CORRELATION, np.maximum(task.trace.events.correlation[task.events[chosen]], 0)
