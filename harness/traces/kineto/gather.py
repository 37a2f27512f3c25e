"""Batches of records to growing columns: decodes each kind with its own shape and keeps nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import Names
from harness.traces.kineto.numbers import nanoseconds
from harness.traces.kineto.pick import MESSAGE_OPERATOR, Batch
from harness.traces.kineto.records import (
    COPIES,
    KERNELS,
    KIND_OF_CATEGORY,
    SETS,
    Kind,
    MemoryRecord,
    MessageArgs,
    MessageRecord,
    OperatorRecord,
    Work,
    WorkArgs,
    integer,
    integers,
)
from harness.traces.kineto.repair import decoded
from harness.traces.trace import I32, I64, Activity
from harness.traces.vocabulary import dtype_name

_work = msgspec.json.Decoder(list[Work])
_operator = msgspec.json.Decoder(list[OperatorRecord])
_memory = msgspec.json.Decoder(list[MemoryRecord])
_message = msgspec.json.Decoder(MessageRecord)

Item = TypeVar("Item")

_NO_ARGS = WorkArgs()
_GPU = 1  # c10's device type
_ACTIVITY = {
    **dict.fromkeys(KERNELS, Activity.KERNEL),
    **dict.fromkeys(COPIES, Activity.MEMCPY),
    **dict.fromkeys(SETS, Activity.MEMSET),
}


class Columns:
    """Columns that grow by whole arrays."""

    def __init__(self, *columns: str) -> None:
        self._parts: dict[str, list[I64]] = {name: [] for name in columns}

    def extend(self, **columns: I64 | I32) -> None:
        """Add rows; every column the same number."""
        for name, values in columns.items():
            self._parts[name].append(values.astype(np.int64, copy=False))

    def joined(self, other: Columns, **mapped: I64) -> None:
        """Append all of `other`'s rows, the columns `mapped` in place of its own."""
        for name, parts in self._parts.items():
            parts.extend([mapped[name]] if name in mapped else other._parts[name])

    def mapped(self, name: str, index: I64) -> I64:
        """`index` of each value of a column, -1 of -1."""
        values = np.concatenate(self._parts[name]) if self._parts[name] else np.empty(0, np.int64)
        return np.where(values >= 0, index[values], -1) if len(index) else values

    def column(self, name: str) -> I64:
        """One whole column; its parts are let go, so it can be asked for once."""
        parts = self._parts.pop(name)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def last(self, name: str) -> int:
        """A column's last value, 0 where there is none. To be asked before `column`."""
        return next((int(part[-1]) for part in reversed(self._parts[name]) if len(part)), 0)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        return sum(map(len, next(iter(self._parts.values()))))


@dataclass(slots=True)
class HostMessage:
    """A span on the host that issues a collective, with what it says about it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    args: MessageArgs


class _Timed(Protocol):
    ts: msgspec.Raw
    dur: msgspec.Raw


@dataclass(slots=True)
class Gathered:
    """Everything kept of the records, still in the file's order."""

    names: Names = field(default_factory=Names)
    device: Columns = field(
        default_factory=lambda: Columns(
            "start", "end", "name", "activity", "device", "stream", "correlation", "bytes"
        )
    )
    calls: Columns = field(default_factory=lambda: Columns("start", "end", "name", "thread", "correlation"))
    ranges: Columns = field(default_factory=lambda: Columns("start", "end", "name", "thread"))
    operators: Columns = field(default_factory=lambda: Columns("start", "end", "name", "thread", "dtype"))
    device_messages: dict[int, MessageArgs] = field(default_factory=dict)  # by row of `device`
    host_messages: list[HostMessage] = field(default_factory=list)
    peak_memory_bytes: dict[int, int] = field(default_factory=dict)
    pid: int = -1
    pids: dict[Kind, set[int]] = field(default_factory=dict)  # of the host's records of each kind
    forgiving: bool = False  # of a record without a proper time: it is left out and counted, not a ValueError
    timeless: int = 0
    _rows: int = 0

    def add(self, batch: Batch) -> None:
        """Take in one batch. Raises msgspec.DecodeError or ValueError for records that are none."""
        handlers: dict[Kind, Callable[[list[bytes]], None]] = {
            Kind.DEVICE: self._decode_work,
            Kind.CALL: self._decode_calls,
            Kind.RANGE: self._add_ranges,
            Kind.OPERATOR: self._add_operators,
            Kind.INSTANT: self._add_memory,
        }
        for kind, texts in batch.texts.items():
            if texts:
                handlers[kind](texts)
        if batch.work:
            self._add_work(batch.work, batch.told)
        if batch.calls:
            self._add_calls(batch.calls)

    def joined(self, other: Gathered) -> Gathered:
        """This, followed by what was gathered of a later part of the same file."""
        index = self.names.indices(other.names.texts).astype(np.int64)
        for mine, others in zip(self._tables(), other._tables(), strict=True):
            named = [name for name in ("name", "dtype") if name in mine]
            mine.joined(others, **{name: others.mapped(name, index) for name in named})
        self.device_messages |= {self._rows + row: said for row, said in other.device_messages.items()}
        self.host_messages += other.host_messages
        for device, peak in other.peak_memory_bytes.items():
            self.peak_memory_bytes[device] = max(peak, self.peak_memory_bytes.get(device, 0))
        self.pid = self.pid if self.pid >= 0 else other.pid
        for kind, pids in other.pids.items():
            self.pids.setdefault(kind, set()).update(pids)
        self.timeless += other.timeless
        self._rows += other._rows
        return self

    def _tables(self) -> tuple[Columns, ...]:
        return self.device, self.calls, self.ranges, self.operators

    def _decode_work(self, texts: list[bytes]) -> None:
        records = decoded(_work, _array(texts))
        _check((r.cat for r in records), Kind.DEVICE)
        told = [t for t, r in zip(texts, records, strict=True) if r.args and r.args.collective is not None]
        self._add_work(records, told)

    def _add_work(self, records: list[Work], told: list[bytes]) -> None:
        rows, start, end = self._timed(records)
        if len(rows) < len(records):
            telling = [i for i, r in enumerate(records) if r.args and r.args.collective is not None]
            told = [text for i, text in zip(telling, told, strict=True) if i in rows]
            records = _only(rows, records)
        args = [r.args or _NO_ARGS for r in records]
        device = [r.pid if a.device is None else a.device for r, a in zip(records, args, strict=True)]
        self.device.extend(
            start=start,
            end=end,
            name=self.names.indices([r.name for r in records]),
            activity=np.array([_ACTIVITY[r.cat] for r in records], np.int64),
            device=integers(device),
            stream=integers([a.stream for a in args]),
            correlation=integers([a.correlation for a in args]),
            bytes=integers([a.bytes for a in args]),
        )
        places = (row for row, a in enumerate(args, self._rows) if a.collective is not None)
        self.device_messages |= {
            row: decoded(_message, text).args for row, text in zip(places, told, strict=True)
        }
        self._rows += len(records)

    def _decode_calls(self, texts: list[bytes]) -> None:
        records = decoded(_work, _array(texts))
        _check((r.cat for r in records), Kind.CALL)
        self._add_calls(records)

    def _add_calls(self, records: list[Work]) -> None:
        self._note_processes(Kind.CALL, (r.pid for r in records))
        rows, start, end = self._timed(records)
        records = _only(rows, records)
        self.calls.extend(
            start=start,
            end=end,
            name=self.names.indices([r.name for r in records]),
            thread=integers([r.tid for r in records]),
            correlation=integers([(r.args or _NO_ARGS).correlation for r in records]),
        )

    def _add_ranges(self, texts: list[bytes]) -> None:
        records = decoded(_operator, _array(texts))
        _check((r.cat for r in records), Kind.RANGE, Kind.OPERATOR)
        self._note_processes(Kind.RANGE, (r.pid for r in records))
        rows, start, end = self._timed(records)
        records, texts = _only(rows, records), _only(rows, texts)
        self.ranges.extend(
            start=start,
            end=end,
            name=self.names.indices([r.name for r in records]),
            thread=integers([r.tid for r in records]),
        )
        self._add_host_messages(records, texts, start, end, ("nccl:", "gloo:"))

    def _add_operators(self, texts: list[bytes]) -> None:
        records = decoded(_operator, _array(texts))
        _check((r.cat for r in records), Kind.OPERATOR)
        self._note_processes(Kind.OPERATOR, (r.pid for r in records))
        rows, start, end = self._timed(records)
        records, texts = _only(rows, records), _only(rows, texts)
        self.operators.extend(
            start=start,
            end=end,
            name=self.names.indices([r.name for r in records]),
            thread=integers([r.tid for r in records]),
            dtype=np.array([self._dtype(r) for r in records], np.int64),
        )
        self._add_host_messages(records, texts, start, end, (MESSAGE_OPERATOR, "c10d::"))

    def _add_host_messages(
        self,
        records: list[OperatorRecord],
        texts: list[bytes],
        start: I64,
        end: I64,
        prefixes: tuple[str, ...],
    ) -> None:
        for row, record in enumerate(records):
            if record.name.startswith(prefixes):
                args = decoded(_message, texts[row]).args
                span = HostMessage(record.name, int(start[row]), int(end[row]), integer(record.tid), args)
                self.host_messages.append(span)

    def _dtype(self, record: OperatorRecord) -> int:
        for written in record.args.types or ():
            name = dtype_name(written)
            if name is not None:
                return self.names.index(name)
        return -1

    def _add_memory(self, texts: list[bytes]) -> None:
        peak = self.peak_memory_bytes
        records = decoded(_memory, _array(texts))
        _check((r.cat for r in records), Kind.INSTANT)
        for record in records:
            args = record.args
            if record.name == "[memory]" and args.total is not None:
                device = args.device if args.device_type == _GPU and args.device is not None else -1
                peak[device] = max(peak.get(device, 0), args.total)

    def _timed(self, records: Sequence[_Timed]) -> tuple[Sequence[int], I64, I64]:
        """The places of the records that have a time, and their starts and ends."""
        try:
            start, length = _times(records)
        except ValueError:
            if not self.forgiving:
                raise
            start, length = np.concatenate([_own_times(record) for record in records], axis=1)
        good = length >= 0
        if good.all():
            return range(len(records)), start, start + length
        if not self.forgiving:
            raise ValueError("a duration is below zero")
        self.timeless += int((~good).sum())
        return np.flatnonzero(good).tolist(), start[good], (start + length)[good]

    def _note_processes(self, kind: Kind, pids: Iterable[int | str]) -> None:
        """Of each kind of records apart: one tool may number a process otherwise than another does."""
        distinct = dict.fromkeys(pids)
        if self.pid < 0:
            self.pid = integer(next(iter(distinct)))
        self.pids.setdefault(kind, set()).update({integer(pid) for pid in distinct} - {-1})


def _array(texts: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


def _check(categories: Iterable[str], *kinds: Kind) -> None:
    """A record's category must be its own, not one that was found somewhere inside it."""
    for category in set(categories):
        if KIND_OF_CATEGORY.get(category) not in kinds:
            raise ValueError(f"a record of category {category!r} is not what it seemed")


def _only(rows: Sequence[int], items: list[Item]) -> list[Item]:
    return items if len(rows) == len(items) else [items[row] for row in rows]


def _times(records: Sequence[_Timed]) -> tuple[I64, I64]:
    """Start and duration of each record. Raises ValueError where one has none."""
    times = nanoseconds([r.ts for r in records] + [r.dur for r in records])
    return times[: len(records)], times[len(records) :]


def _own_times(record: _Timed) -> NDArray[np.int64]:
    """Start and duration of one record, (0, -1) where it has none."""
    try:
        return np.array(_times([record]), np.int64)
    except ValueError:
        return np.array([[0], [-1]], np.int64)
