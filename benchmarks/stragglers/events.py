"""Tables of operations from Chrome events: a list of records, or `traceEvents`, with the step and micro-batch in their
arguments, and the worker there or in the names of processes and threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness.traces.errors import TraceError
from harness.traces.kineto.framing import Blocks, Records
from harness.traces.open import checked_beginning
from harness.traces.trace import F64
from stragglers.table import MOST_ROWS, Table, as_numbers, read_csv, read_parquet, table_of
from stragglers.timeline import Operations, operations_of
from stragglers.vocabulary import TIMES, UNITS_NS, column_of

_EVENTS = (".json", ".json.gz")
_OF_WORKER = ("rank", "dp_rank", "stage", "tp_rank")
_PLACES = (
    ("dp_rank", re.compile(r"\b(?:DP|data[- ]parallel)(?:[ _]rank)?[ _:#=]*[\[(]?(\d+)", re.IGNORECASE)),
    ("stage", re.compile(r"\b(?:PP|pipeline|stage)(?:[ _](?:rank|stage))?[ _:#=]*[\[(]?(\d+)", re.IGNORECASE)),
    ("tp_rank", re.compile(r"\b(?:TP|tensor[- ]parallel)(?:[ _]rank)?[ _:#=]*[\[(]?(\d+)", re.IGNORECASE)),
    ("rank", re.compile(r"(?:^|[,;(|])\s*(?:global[ _])?rank[ _:#=]*[\[(]?(\d+)", re.IGNORECASE)),
)  # fmt: skip
Lane = tuple[Any, Any]  # process and thread


class _Event(msgspec.Struct):
    """One record; of a damaged file any value may be anything."""

    name: Any = None
    ph: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Any = None


class _Gathered:
    """The columns of all events so far."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.operation: list[int] = []
        self.start: list[Any] = []
        self.duration: list[Any] = []
        self.lane: list[Lane] = []
        self.numbers: dict[str, dict[int, Any]] = {}
        self.places: dict[Lane, dict[str, float]] = {}
        self._columns: dict[Any, str | None] = {}

    def add(self, event: _Event) -> None:
        """One record: an operation, or the name of a process or of a thread."""
        args = event.args if isinstance(event.args, dict) else {}
        if event.ph == "M":
            thread = None if event.name == "process_name" else _key(event.tid)
            if event.name in ("process_name", "thread_name"):
                self.places.setdefault((_key(event.pid), thread), {}).update(places_in(str(args.get("name"))))
        elif event.ph == "X" and isinstance(event.name, str):
            self._operation(event, args)

    def _operation(self, event: _Event, args: dict[Any, Any]) -> None:
        row = len(self.operation)
        self.operation.append(self.index.setdefault(event.name, len(self.index)))
        self.start.append(event.ts)
        self.duration.append(event.dur)
        self.lane.append((_key(event.pid), _key(event.tid)))
        for head, value in args.items():
            column = self._columns.get(head, "")
            if column == "":
                named = column_of(head) if isinstance(head, str) else None
                column = named[0] if named and named[0] not in (*TIMES, "operation") else None
                self._columns[head] = column
            if column is not None:
                self.numbers.setdefault(column, {})[row] = value

    def columns(self) -> dict[str, F64]:
        """Every column but the times: of the arguments, else of the names of processes and threads."""
        found = {name: self._column(values) for name, values in self.numbers.items()}
        for name in _OF_WORKER:
            if name not in found and any(name in place for place in self.places.values()):
                found[name] = as_numbers([self._place(lane, name) for lane in self.lane])
        if not any(name in found for name in _OF_WORKER[:3]):
            pids = as_numbers([pid for pid, _ in self.lane])
            lanes = pids if len(np.unique(pids)) > 1 else as_numbers([tid for _, tid in self.lane])
            found["rank"] = lanes
        return found

    def _column(self, values: dict[int, Any]) -> F64:
        column = np.full(len(self.operation), np.nan)
        column[np.fromiter(values, np.int64, len(values))] = as_numbers(list(values.values()))
        return column

    def _place(self, lane: Lane, name: str) -> float:
        of_process = self.places.get((lane[0], None), {}).get(name, float("nan"))
        return self.places.get(lane, {}).get(name, of_process)


def _key(value: Any) -> Any:
    """A process or a thread as a key."""
    return value if isinstance(value, (int, str)) else str(value)


def places_in(text: str) -> dict[str, float]:
    """The worker's place that a process's or a thread's name gives.

    >>> places_in("PP rank 3, TP rank 0, compute"), places_in("DP rank [1]"), places_in("rank 12")
    ({'stage': 3.0, 'tp_rank': 0.0}, {'dp_rank': 1.0}, {'rank': 12.0})
    """
    found = {name: pattern.search(text) for name, pattern in _PLACES}
    return {name: float(match[1]) for name, match in found.items() if match and len(match[1]) < 10}


def read_events(path: Path) -> Table:
    """The operations among a file's Chrome events, whose times are microseconds. Raises TraceError: the file cannot be
    read."""
    gathered, records = _Gathered(), Records(Blocks(path))
    for event in _events(path, records):
        gathered.add(event)
        if len(gathered.operation) > MOST_ROWS:
            raise TraceError(path, f"has more than {MOST_ROWS:,} events, more than any job of a few steps")
    numbers = gathered.columns() | {"start": as_numbers(gathered.start), "duration": as_numbers(gathered.duration)}
    units = dict.fromkeys(TIMES, UNITS_NS["us"])
    table = table_of(path, list(gathered.index), np.array(gathered.operation, np.int64), numbers, units)
    if records.truncated:
        table.notes.append(f"{records.truncated}; the events before that were read")
    return table


def _events(path: Path, records: Records) -> Iterator[_Event]:
    decoder = msgspec.json.Decoder(_Event)
    for block in records:
        for record in block:
            try:
                yield decoder.decode(record)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise TraceError(path, f"has a record that is no event: {error}") from None


def read_operations(path: Path) -> Operations:
    """The operations of a timeline.

    Raises:
        ColumnsError: it lacks a column.
        TraceError: it cannot be read, or is Parquet, and pyarrow is not installed.
    """
    checked_beginning(path, "timeline")
    if path.name.endswith(_EVENTS):
        return operations_of(read_events(path))
    return operations_of(read_parquet(path) if path.suffix == ".parquet" else read_csv(path))
