"""Builds the columns of a trace for every reader: the table of names, sorting, launches, empty columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.common.display.printable import printable_name
from harness.traces.trace import I32, I64, Activity, Calls, Events, HostSpans, Ranges, Spans

AnySpans = TypeVar("AnySpans", bound=Spans)
OnThreads = TypeVar("OnThreads", bound=Ranges | HostSpans)
AnyColumn = NDArray[Any]
Columns = dict[str, AnyColumn]

TWICE = "{count} pieces of work are in the file again, with the same call, start and stream: each counts once"
CONTEXT = (
    "work of one context ({context}) is on devices {devices}, and a context has one device: numbers of devices are "
    "wrong, or the file holds several processes"
)
_SPARSEST = 8  # the most slots per number of a table in which numbers are looked up
_SMALL = 1 << 24  # a table of ids may have so many slots however few ids there are
_FEW = 1 << 20  # the same where there are usually few


class NameTable(dict[str, int]):
    """The trace's table of names: the index of each text in `texts`, which hold each name once, printable and not
    too long."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        shown = printable_name(text)
        self[text] = index = len(self.texts) if shown == text else self[shown]
        if shown == text:
            self.texts.append(text)
        return index

    def indices(self, texts: Iterable[str]) -> I32:
        """The indices of many texts; a new text is added."""
        return np.array(list(map(self.__getitem__, texts)), np.int32)


def constant(value: int, length: int, dtype: type[np.generic] = np.int64) -> AnyColumn:
    """A column with the same value in every row, which takes no memory (read-only)."""
    return np.broadcast_to(np.array(value, dtype), (length,))


def unknown(length: int) -> I64:
    """A column of -1, which takes no memory (read-only)."""
    return constant(-1, length)


def compacted(column: AnyColumn) -> AnyColumn:
    """The same column, as a constant where every row has the same value."""
    if is_constant(column) or len(column) == 0 or column.min() != column.max():
        return column
    return np.broadcast_to(column[:1].copy(), column.shape)


def device_numbers(column: AnyColumn) -> I32:
    """Numbers of devices in 32 bits; -2, which is no device, for one that does not fit."""
    fits = (column >= -1) & (column < 1 << 31)
    return (column if fits.all() else np.where(fits, column, -2)).astype(np.int32)


def is_constant(column: AnyColumn) -> bool:
    """Whether a column was made by `constant`."""
    return column.strides == (0,)


def reordered(column: AnyColumn, order: NDArray[np.intp]) -> AnyColumn:
    """The rows of one column in `order`; a constant one stays constant and free."""
    return np.broadcast_to(column[:1], order.shape) if is_constant(column) else column[order]


def take(spans: AnySpans, order: NDArray[np.intp]) -> AnySpans:
    """`spans` in `order`, which may leave some out."""
    return replace(spans, **{f.name: reordered(getattr(spans, f.name), order) for f in fields(spans)})


def work(activity: Activity, name: I32, **columns: AnyColumn) -> Columns:
    """Columns of Events; of `bytes`, `copy_kind` and `host_memory` those that are not given are not known."""
    n = len(name)
    unless_given = {
        "bytes": unknown(n),
        "copy_kind": constant(-1, n, np.int32),
        "host_memory": constant(0, n, np.uint8),
    }
    return {"name": name, "activity": constant(activity, n, np.uint8), **unless_given, **columns}


def sorted_events(columns: Columns, calls: Calls) -> Events:
    """Events in the order that `Events` requires, with their launches. Reorders the columns of `columns` itself."""
    order = sorting_order(columns["start_ns"], columns["device"])
    if order is not None:
        for name in columns:  # one column at a time: all at once would take twice the memory
            columns[name] = reordered(columns[name], order)
    launch_ns, launch_thread = launches(columns["correlation"], columns["process"], calls)
    dtype = constant(-1, len(launch_ns), np.int32)
    return Events(**columns, launch_ns=launch_ns, launch_thread=launch_thread, dtype=dtype)


def joined(columns: list[Columns]) -> Columns:
    """The rows of several tables with the same columns, one table after the other. Empties `columns`."""
    full = [part for part in columns if len(next(iter(part.values())))] or columns[:1]
    return {name: _joined([part.pop(name) for part in full]) for name in list(full[0])}


def _joined(columns: list[AnyColumn]) -> AnyColumn:
    if len(columns) == 1:
        return columns[0]
    if all(map(is_constant, columns)) and len({int(column[0]) for column in columns}) == 1:
        return np.broadcast_to(columns[0][:1], (sum(map(len, columns)),))
    return np.concatenate(columns)


def is_sorted(keys: NDArray[np.integer]) -> bool:
    """Whether `keys` never decrease."""
    return len(keys) < 2 or bool((keys[1:] >= keys[:-1]).all())


def distinct(values: NDArray[np.integer]) -> list[int]:
    """The distinct values of a column that has few, ascending."""
    if is_constant(values):
        return [int(values[0])] if len(values) else []
    changed = np.flatnonzero(values[1:] != values[:-1]) + 1
    return sorted({*values[:1].tolist(), *values[changed].tolist()})


def distinct_count(ids: NDArray[np.integer]) -> int:
    """How many distinct ids there are."""
    ids = np.sort(ids)
    return len(ids[:1]) + int(np.count_nonzero(ids[1:] != ids[:-1]))


def distinct_rows(ids: NDArray[np.integer], small: int = _SMALL) -> tuple[I64, NDArray[np.integer]]:
    """The distinct ids, ascending, and for each row the position of its id among them. Ids are not sorted where a table
    of them has few slots for each, or not more than `small`."""
    lowest, highest = int(ids.min(initial=0)), int(ids.max(initial=0))
    if highest - lowest > _SPARSEST * len(ids) + small:
        return np.unique(ids, return_inverse=True)
    shifted = ids - lowest if lowest else ids
    seen = np.zeros(highest - lowest + 1, bool)
    seen[shifted] = True
    position = np.cumsum(seen, dtype=np.int32) - 1
    return np.flatnonzero(seen) + lowest, position[shifted]


def distinct_columns(rows: Sequence[NDArray[np.integer]]) -> tuple[NDArray[np.integer], I64]:
    """The distinct columns of a matrix of numbers from -1 on, and of each column its place among them. They are in the
    order of their first numbers, then of their second ones, and so on."""
    code = np.zeros(len(rows[0]), np.int64)
    for values in rows:
        place = distinct_rows(values + 1, _FEW)[1]
        code = distinct_rows(code * (int(place.max(initial=0)) + 1) + place, _FEW)[1].astype(np.int64)
    first = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return np.stack([values[first] for values in rows]), code


def sorting_order(start_ns: I64, device: NDArray[np.integer]) -> NDArray[np.intp] | None:
    """The order that sorts events as `Events` requires, by device and start; None: they are sorted."""
    pieces = []
    for number in distinct(device):
        rows = np.flatnonzero(device == number)
        starts = start_ns[rows]
        pieces.append(rows if is_sorted(starts) else rows[np.argsort(starts, kind="stable")])
    order = np.concatenate(pieces) if pieces else np.empty(0, np.intp)
    return None if is_sorted(order) else order


def repeated(spans: Spans) -> NDArray[np.bool_]:
    """Which rows are the same as another one in each column; of these rows one is not chosen. Rows are in an order in
    which those of the same start are neighbours."""
    again = np.zeros(len(spans), np.bool_)
    tied = np.flatnonzero(np.diff(spans.start_ns) == 0)
    rows = np.union1d(tied, tied + 1)
    if len(rows):
        keys = [getattr(spans, column.name)[rows] for column in fields(spans)]
        order = np.lexsort(keys)
        same = np.all([np.diff(key[order]) == 0 for key in keys], axis=0)
        again[rows[order[1:][same]]] = True
    return again


def once(spans: AnySpans) -> AnySpans:
    """Without the rows that are there more than once, as in an export whose tables were joined with themselves."""
    again = repeated(spans)
    return take(spans, np.flatnonzero(~again)) if again.any() else spans


def of_several_devices(process: I64, context: I64, device: AnyColumn) -> str | None:
    """A sentence if work of one context, which is a process's on one device, is on several."""
    rows = np.flatnonzero(context > 0)
    pairs = distinct_columns([process[rows], context[rows], device[rows]])[0].T.tolist()
    devices: dict[tuple[int, int], list[int]] = {}
    for pid, number, each in pairs:
        devices.setdefault((pid, number), []).append(each)
    number, on = next(((number, on) for (_, number), on in devices.items() if len(on) > 1), (0, []))
    return CONTEXT.format(context=number, devices=" and ".join(map(str, on))) if on else None


def sorted_calls(calls: Calls) -> Calls:
    """Calls in the order that `Calls` requires: by start."""
    if is_sorted(calls.start_ns):
        return calls
    return take(calls, np.argsort(calls.start_ns, kind="stable"))


def sorted_spans(spans: OnThreads) -> OnThreads:
    """Ranges or spans of the host in the order that these require: by thread, then start, the longer first."""
    return take(spans, np.lexsort((-spans.end_ns, spans.start_ns, spans.thread)))


def launches(correlation: I64, process: I64, calls: Calls) -> tuple[I64, I64]:
    """Start and thread of the call that launched each event, -1 where no call did.

    Each process counts its own correlation numbers, so they are looked up one process at a time.
    """
    start, thread = unknown(len(correlation)), unknown(len(correlation))
    numbers = distinct(process)
    if len(calls) == 0 or not numbers:
        return start, thread
    callers = distinct(calls.process)
    if len(callers) == 1 and numbers in (callers, [-1]):
        call = _call_of(correlation, calls.correlation)
        return _of_call(calls.start_ns, call), _of_call(calls.thread, call)
    start, thread = start.copy(), thread.copy()
    for number in numbers:
        mine, theirs = np.flatnonzero(process == number), np.flatnonzero(calls.process == number)
        call = _call_of(correlation[mine], calls.correlation[theirs])
        start[mine] = _of_call(calls.start_ns[theirs], call)
        thread[mine] = _of_call(calls.thread[theirs], call)
    return start, thread


def _of_call(column: I64, call: NDArray[np.integer]) -> I64:
    return np.where(call >= 0, column[call], -1) if len(column) else unknown(len(call))


def _call_of(wanted: I64, have: I64) -> NDArray[np.integer]:
    """The first position in `have` of each wanted number, -1 where it is not there; -1 is never found."""
    if len(have) == 0 or len(wanted) == 0:
        return unknown(len(wanted))
    lowest, slots = int(have.min()), int(have.max()) - int(have.min()) + 1
    if slots > _SPARSEST * (len(have) + len(wanted)) + 1024:
        return _searched(wanted, have)
    table = np.full(slots + 1, -1, np.int32)  # the last slot is for numbers out of range
    table[(have - lowest)[::-1]] = np.arange(len(have) - 1, -1, -1, dtype=np.int32)
    slot = wanted - lowest
    slot[(slot < 0) | (slot >= slots) | (wanted < 0)] = slots
    return table[slot]


def _searched(wanted: I64, have: I64) -> NDArray[np.integer]:
    order = np.argsort(have, kind="stable")
    keys = have[order]
    position = np.searchsorted(keys, wanted)
    position[position == len(keys)] = 0
    return np.where((keys[position] == wanted) & (wanted >= 0), order[position], -1)
