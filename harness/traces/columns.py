"""What every reader builds its columns with: one table of names, sorting, launches, empty parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I32, I64, Calls, Collectives, Events, Ranges
from harness.traces.vocabulary import printable

Part = TypeVar("Part", Events, Calls, Ranges, Collectives)
Column = NDArray[Any]

_DTYPES = {"F64": np.float64, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
_SPARSEST = 8  # numbers are looked up in a table while it has at most so many slots per number


class Names:
    """The trace's table of names: each distinct text once, as `printable` gives it, referred to by its index."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index = _Index(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def index(self, text: str) -> int:
        """The index of `text`, which is added when it is new."""
        return self._index[text]

    def indices(self, texts: Iterable[str]) -> I32:
        """The indices of many texts."""
        return np.array(list(map(self._index.__getitem__, texts)), np.int32)


class _Index(dict[str, int]):
    """Each text's place in a list, which takes in a text that is asked for the first time."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __missing__(self, text: str) -> int:
        shown = printable(text)
        if shown != text:
            self[text] = place = self[shown]
            return place
        self[text] = place = len(self._texts)
        self._texts.append(text)
        return place


def constant(value: int, length: int, dtype: type[np.generic] = np.int64) -> Column:
    """A column that says the same in every row and takes no memory (read-only)."""
    return np.broadcast_to(np.array(value, dtype), (length,))


def unknown(length: int) -> I64:
    """A column of `length` unknowns that takes no memory (read-only)."""
    return constant(-1, length)


def compacted(column: Column) -> Column:
    """The same column, as a constant where every row says the same."""
    if is_constant(column) or len(column) == 0 or column.min() != column.max():
        return column
    return np.broadcast_to(column[:1].copy(), column.shape)


def is_constant(column: Column) -> bool:
    """Whether a column was made by `constant`."""
    return column.strides == (0,)


def empty(part: type[Part]) -> Part:
    """A part with no rows."""
    return part(**{f.name: np.empty(0, _DTYPES[str(f.type)]) for f in fields(part)})


def reordered(column: Column, order: NDArray[np.intp]) -> Column:
    """The rows of one column in `order`; a constant one stays constant and free."""
    return np.broadcast_to(column[:1], order.shape) if is_constant(column) else column[order]


def take(part: Part, order: NDArray[np.intp]) -> Part:
    """The rows of `part` in `order`."""
    return replace(part, **{f.name: reordered(getattr(part, f.name), order) for f in fields(part)})


def joined(parts: list[dict[str, Column]]) -> dict[str, Column]:
    """The rows of several tables with the same columns, one after the other. Empties `parts` as it goes."""
    full = [part for part in parts if len(next(iter(part.values())))] or parts[:1]
    names = list(full[0])
    return {name: _joined([part.pop(name) for part in full]) for name in names}


def _joined(columns: list[Column]) -> Column:
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
    return sorted({int(value) for value in values[_changes(values)]})


def _changes(values: NDArray[np.integer]) -> NDArray[np.intp]:
    """Rows whose value differs from the one before; the first row is one."""
    different = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=different[1:])
    return np.flatnonzero(different)


def sorting_order(start_ns: I64, device: NDArray[np.integer]) -> NDArray[np.intp] | None:
    """The order that sorts events as the contract says, by device and start; None: they already are."""
    pieces = []
    for number in distinct(device):
        rows = np.flatnonzero(device == number)
        starts = start_ns[rows]
        pieces.append(rows if is_sorted(starts) else rows[np.argsort(starts, kind="stable")])
    order = np.concatenate(pieces) if pieces else np.empty(0, np.intp)
    return None if is_sorted(order) else order


def sorted_calls(calls: Calls) -> Calls:
    """Calls in the contract's order: by start."""
    if is_sorted(calls.start_ns):
        return calls
    return take(calls, np.argsort(calls.start_ns, kind="stable"))


def sorted_ranges(ranges: Ranges) -> Ranges:
    """Ranges in the contract's order: by thread, then start, the longer first."""
    return take(ranges, np.lexsort((-ranges.end_ns, ranges.start_ns, ranges.thread)))


def launches(correlation: I64, process: I64, calls: Calls) -> tuple[I64, I64]:
    """Start and thread of the call that launched each event, -1 where there is none.

    Correlation numbers count per process, so several processes' numbers are looked up one process at a time.
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
    """The first position in `have` of each wanted number, -1 where there is none; -1 itself is never found."""
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
