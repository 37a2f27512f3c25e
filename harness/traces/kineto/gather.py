"""Batches of records to growing columns: decodes each kind with its own shape and keeps nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable, constant, device_numbers
from harness.traces.kineto.framing import decoded
from harness.traces.kineto.pick import MESSAGE_OPERATOR, RecordBatch, is_old_range
from harness.traces.kineto.records import (
    COPIES,
    KERNELS,
    KIND_OF_CATEGORY,
    MTIA,
    OLD_OPERATOR,
    OPERATORS,
    SETS,
    DeviceRecord,
    HostRecord,
    MemoryRecord,
    MessageArgs,
    MessageRecord,
    OperatorRecord,
    RecordKind,
    WorkArgs,
    carries_message,
    integer,
    integers,
    nanoseconds,
    works_alike,
)
from harness.traces.trace import I64, SHORTEST_HOST_NS, Activity, HostKind
from harness.traces.vocabulary import dtype_name, overhead_kind

_work = msgspec.json.Decoder(list[DeviceRecord])
_operator = msgspec.json.Decoder(list[OperatorRecord])
_host = msgspec.json.Decoder(list[HostRecord])
_memory = msgspec.json.Decoder(list[MemoryRecord])
_message = msgspec.json.Decoder(MessageRecord)

Item = TypeVar("Item")
AnyRecord = TypeVar("AnyRecord", DeviceRecord, OperatorRecord, HostRecord, MemoryRecord)

_MOST_UNREADABLE = 1000  # records, each left out; with more of them the whole file is unreliable
_NO_ARGS = WorkArgs()
_GPU = 1  # c10's device type
_ACTIVITY = {
    **dict.fromkeys(KERNELS, Activity.KERNEL),
    **dict.fromkeys(COPIES, Activity.MEMCPY),
    **dict.fromkeys(SETS, Activity.MEMSET),
}
_HOST_KIND = {
    **dict.fromkeys(OPERATORS, HostKind.OPERATOR),
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.PROFILER,
}
_COLLECTORS = ("Python GC", "<built-in function collect>")  # with record_python_gc_info; of gc.collect()
# Names of the records on the host that issue a collective.
_ISSUING = {RecordKind.RANGE: ("nccl:", "gloo:"), RecordKind.OPERATOR: (MESSAGE_OPERATOR, "c10d::")}
_DTYPES = {
    **dict.fromkeys(("name", "dtype", "device"), np.int32),
    **dict.fromkeys(("activity", "kind"), np.uint8),
}  # others are int64


class Unbelievable(Exception):
    """So many records cannot be read that the others are not reliable."""


class Columns:
    """Columns of a Trace that grow by whole arrays."""

    def __init__(self, *names: str) -> None:
        self._pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def extend(self, **columns: NDArray[Any]) -> None:
        """Add rows; every column the same number."""
        for name, values in columns.items():
            self._pieces[name].append(values.astype(_DTYPES.get(name, np.int64), copy=False))

    def joined(self) -> dict[str, NDArray[Any]]:
        """All columns, each in one piece. The pieces are released, so this can be called once."""
        joined = {}
        for name in list(self._pieces):
            pieces = self._pieces.pop(name)
            joined[name] = np.concatenate(pieces) if pieces else np.empty(0, _DTYPES.get(name, np.int64))
        return joined

    def column(self, name: str) -> NDArray[Any]:
        """One column so far. To be called before `joined`."""
        return np.concatenate([np.empty(0, _DTYPES.get(name, np.int64)), *self._pieces[name]])

    def last(self, name: str) -> int:
        """A column's last value, 0 if there is none. To be called before `joined`."""
        return next((int(piece[-1]) for piece in reversed(self._pieces[name]) if len(piece)), 0)

    def __len__(self) -> int:
        return sum(map(len, next(iter(self._pieces.values()))))


@dataclass(slots=True)
class HostMessage:
    """A span on the host that issues a collective, with its arguments."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    args: MessageArgs


class _TimedRecord(Protocol):
    ts: msgspec.Raw
    dur: msgspec.Raw


_SPAN, _ON = ("start_ns", "end_ns", "name"), ("thread", "process")


@dataclass(slots=True)
class KeptRecords:
    """Everything kept of the records, still in the file's order."""

    names: NameTable = field(default_factory=NameTable)
    device: Columns = field(
        default_factory=lambda: Columns(*_SPAN, "activity", "device", "stream", "correlation", "bytes", "context")
    )
    calls: Columns = field(default_factory=lambda: Columns(*_SPAN, *_ON, "correlation"))
    ranges: Columns = field(default_factory=lambda: Columns(*_SPAN, *_ON))
    operators: Columns = field(default_factory=lambda: Columns(*_SPAN, *_ON, "dtype"))
    host: Columns = field(default_factory=lambda: Columns(*_SPAN, *_ON, "kind"))
    device_messages: dict[int, MessageArgs] = field(default_factory=dict)  # by row of `device`
    host_messages: list[HostMessage] = field(default_factory=list)
    peak_memory_bytes: dict[int, int] = field(default_factory=dict)
    pid: int = -1
    pids: dict[RecordKind, set[int]] = field(default_factory=dict)  # of the host's records of each kind
    timeless: int = 0  # records without a valid duration
    unreadable: int = 0  # other records that are not what they should be
    why_unreadable: str = ""  # of the first of them
    accelerator: str = ""  # of the devices, where they are no GPUs
    accelerator_numbers: set[int] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)  # as in RecordBatch
    named_processes: set[str] = field(default_factory=set)  # pids of the host that are no numbers
    _rows: int = 0

    def add(self, record_batch: RecordBatch) -> None:
        """Take in one batch. Raises Unbelievable: too many records are not of their kind."""
        self.seen |= record_batch.seen
        for kind, texts in record_batch.texts.items():
            if texts:
                self._add_readable(texts, kind)

    def _add_readable(self, texts: list[bytes], kind: RecordKind) -> None:
        """The records of some texts; halves find those that cannot be read, which are left out and counted."""
        try:
            self._add_texts(texts, kind)
        except (msgspec.DecodeError, ValueError) as error:
            if len(texts) > 1:
                half = len(texts) // 2
                self._add_readable(texts[:half], kind)
                self._add_readable(texts[half:], kind)
                return
            self.unreadable += 1
            self.why_unreadable = self.why_unreadable or str(error)
            if self.unreadable > _MOST_UNREADABLE:
                raise Unbelievable(f"{self.unreadable} of its records cannot be read") from error

    def _add_texts(self, texts: list[bytes], kind: RecordKind) -> None:
        """All records of some texts, or an error and none of them."""
        if kind is RecordKind.DEVICE:
            work = _decoded(_work, texts, kind)
            self._add_work(work, texts)
        elif kind is RecordKind.CALL:
            self._add_calls(_decoded(_work, texts, kind))
        elif kind is RecordKind.INSTANT:
            self._add_memory(_decoded(_memory, texts, kind))
        elif kind is RecordKind.HOST:
            self._add_host(_decoded(_host, texts, kind, RecordKind.OPERATOR))
        else:
            self._add_spans(texts, kind)

    def _add_work(self, records: list[DeviceRecord], texts: list[bytes]) -> None:
        """Work on a GPU; `texts` are those of the records."""
        message_texts = [text for text, record in zip(texts, records, strict=True) if carries_message(record)]
        if any(record.cat == MTIA for record in records):
            self.accelerator_numbers.update(integer(record.pid) for record in records if record.cat == MTIA)
            self.accelerator, records = "MTIA", works_alike(records)
        rows, start, end = self._timed(records)
        if len(rows) < len(records):
            carrying = [row for row, record in enumerate(records) if carries_message(record)]
            message_texts = [text for row, text in zip(carrying, message_texts, strict=True) if row in rows]
            records = _only(rows, records)
        args = [r.args or _NO_ARGS for r in records]
        device = [r.pid if a.device is None else a.device for r, a in zip(records, args, strict=True)]
        messages = [decoded(_message, text).args for text in message_texts]
        self.device.extend(
            start_ns=start,
            end_ns=end,
            name=self.names.indices([r.name for r in records]),
            activity=np.array([_ACTIVITY[r.cat] for r in records]),
            device=device_numbers(integers(device)),
            stream=integers([a.stream for a in args]),
            correlation=integers([a.correlation for a in args]),
            bytes=integers([a.bytes for a in args]),
            context=integers([a.context for a in args]),
        )
        places = (row for row, a in enumerate(args, self._rows) if a.collective is not None)
        self.device_messages |= zip(places, messages, strict=True)
        self._rows += len(records)

    def _add_calls(self, records: list[DeviceRecord]) -> None:
        rows, start, end = self._timed(records)
        self._note_processes(RecordKind.CALL, (r.pid for r in records))
        records = _only(rows, records)
        correlation = integers([(r.args or _NO_ARGS).correlation for r in records])
        self.calls.extend(**self._on_thread(records, start, end), correlation=correlation)

    def _add_host(self, records: list[HostRecord]) -> None:
        """Long spans, without those that are ranges or messages and were taken as such."""
        rows, start, end = self._timed(records)
        records = _only(rows, records)
        columns = self._on_thread(records, start, end)
        kind = np.array([_HOST_KIND[r.cat] for r in records], np.uint8)
        for name in _COLLECTORS:
            if name in self.names:
                kind[columns["name"] == self.names[name]] = HostKind.COLLECTOR
        overhead = np.flatnonzero(kind == HostKind.PROFILER)
        columns["thread"][overhead] = -1  # Kineto says of none on which thread it was
        kind[overhead] = [overhead_kind(records[row].name) for row in overhead]
        wanted = end - start >= SHORTEST_HOST_NS
        if MESSAGE_OPERATOR in self.names:
            wanted &= columns["name"] != self.names[MESSAGE_OPERATOR]
        if OLD_OPERATOR in {r.cat for r in records}:
            wanted &= [not is_old_range(r.cat, r.name) for r in records]
        self.host.extend(**{name: column[wanted] for name, column in columns.items()}, kind=kind[wanted])

    def _add_spans(self, texts: list[bytes], kind: RecordKind) -> None:
        """Ranges or operators, and the messages of those that issue a collective."""
        records = _decoded(_operator, texts, kind, RecordKind.OPERATOR)
        rows, start, end = self._timed(records)
        pids = [r.pid for r in records]
        records, texts = _only(rows, records), _only(rows, texts)
        columns = self._on_thread(records, start, end)
        messages = {
            row: decoded(_message, texts[row]).args
            for row, record in enumerate(records)
            if record.name.startswith(_ISSUING[kind])
        }
        self._note_processes(kind, pids)
        if kind is RecordKind.RANGE:
            self.ranges.extend(**columns)
        else:
            types = [r.args.types for r in records]
            dtypes = {inputs: self._dtype(inputs or ()) for inputs in dict.fromkeys(types)}
            self.operators.extend(**columns, dtype=np.array([dtypes[inputs] for inputs in types]))
        for row, args in messages.items():
            record = records[row]
            span = HostMessage(record.name, int(start[row]), int(end[row]), integer(record.tid), args)
            self.host_messages.append(span)

    def _on_thread(
        self, records: Sequence[DeviceRecord | OperatorRecord | HostRecord], start: I64, end: I64
    ) -> dict[str, Any]:
        name = self.names.indices([r.name for r in records])
        on = {"thread": integers([r.tid for r in records]), "process": _processes([r.pid for r in records])}
        return {"start_ns": start, "end_ns": end, "name": name, **on}

    def _dtype(self, inputs: tuple[str, ...]) -> int:
        name = next(filter(None, map(dtype_name, inputs)), None)
        return -1 if name is None else self.names[name]

    def _add_memory(self, records: list[MemoryRecord]) -> None:
        peak = self.peak_memory_bytes
        for record in records:
            args = record.args
            if record.name == "[memory]" and args.total is not None:
                device = args.device if args.device_type == _GPU and args.device is not None else -1
                peak[device] = max(peak.get(device, 0), args.total)

    def _timed(self, records: Sequence[_TimedRecord]) -> tuple[Sequence[int], I64, I64]:
        """The places of the records that have a time, and their starts and ends."""
        try:
            start, length = _times(records)
        except ValueError:
            start, length = np.concatenate([_own_times(record) for record in records], axis=1)
        good = length >= 0
        if good.all():
            return range(len(records)), start, start + length
        self.timeless += int((~good).sum())
        return np.flatnonzero(good).tolist(), start[good], (start + length)[good]

    def _note_processes(self, kind: RecordKind, pids: Iterable[int | str]) -> None:
        """Each kind of records apart, since tools may number the same process differently."""
        distinct = dict.fromkeys(pids)
        if self.pid < 0:
            self.pid = integer(next(iter(distinct)))
        self.pids.setdefault(kind, set()).update({integer(pid) for pid in distinct} - {-1})
        self.named_processes.update(pid for pid in distinct if isinstance(pid, str) and not pid.isdigit())


def _decoded(decoder: msgspec.json.Decoder[list[AnyRecord]], texts: list[bytes], *kinds: RecordKind) -> list[AnyRecord]:
    """The records of some texts, one each. Each must itself have a category of `kinds`, not only hold one inside."""
    records = decoded(decoder, b"[" + b",".join(texts) + b"]")
    if len(records) != len(texts):  # a record that is indented otherwise stands in its neighbour's text
        raise ValueError("a text is not one record")
    for category in {record.cat for record in records}:
        if KIND_OF_CATEGORY.get(category) not in kinds:
            raise ValueError(f"a record of category {category!r} cannot be read")
    return records


def _processes(pids: list[int | str]) -> I64:
    """Most often one process's: then a column that takes no memory."""
    if pids and pids.count(pids[0]) == len(pids):
        return constant(integer(pids[0]), len(pids))
    return integers(pids)


def _only(rows: Sequence[int], items: list[Item]) -> list[Item]:
    return items if len(rows) == len(items) else [items[row] for row in rows]


def _times(records: Sequence[_TimedRecord]) -> tuple[I64, I64]:
    """Start and duration of each record. Raises ValueError: a record has none."""
    times = nanoseconds([r.ts for r in records] + [r.dur for r in records])
    return times[: len(records)], times[len(records) :]


def _own_times(record: _TimedRecord) -> NDArray[np.int64]:
    """Start and duration of one record, (0, -1) where it has none."""
    try:
        return np.array(_times([record]), np.int64)
    except ValueError:
        return np.array([[0], [-1]], np.int64)
