"""A timeline's columns as a file has them: the operations' names, and numbers with NaN where there is none. Knows no
format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.traces.errors import TraceError
from harness.traces.operations.errors import lacks
from harness.traces.operations.vocabulary import COLUMNS, TIMES, UNITS_NS, column_of
from harness.traces.trace import F64, I64

MOST_ROWS = 20_000_000
_CLOCK_NS = 1e7  # by which clocks may be wrong: an operation that ends so much before it starts took no time
_LONGEST_S = 1e6  # of an operation, and between the first and the last one of a step


@dataclass(frozen=True)
class Table:
    """n rows. operation: of each row, the index into `names`, which are as the file writes them.

    numbers: by column of COLUMNS; `start` is since the earliest one, and all times are nanoseconds.
    unreadable: rows with a time that is no time, which have no other use than to name their steps.
    """

    path: Path
    names: list[str]
    operation: I64
    numbers: dict[str, F64]
    unreadable: np.ndarray[tuple[int], np.dtype[np.bool_]]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.operation)


def columns_among(path: Path, heads: Sequence[str]) -> dict[str, tuple[int, float | None]]:
    """Of each column of a timeline the position of its head and its unit in nanoseconds, if the head names it.

    Raises:
        ColumnsError: a column is missing that every timeline has.
    """
    found: dict[str, tuple[int, float | None]] = {}
    for position, head in enumerate(heads):
        named = column_of(head)
        if named is not None and _is_better(heads, named[0], head, found):
            found[named[0]] = position, named[1]
    missing = [name for name in ("operation", "start") if name not in found]
    missing += [] if "duration" in found or "end" in found else ["duration"]
    missing += [] if any(name in found for name in ("rank", "dp_rank", "stage")) else ["rank"]
    if missing:
        raise lacks(path, missing, heads)
    return found


def _is_better(
    heads: Sequence[str], column: str, head: str, found: Mapping[str, tuple[int, float | None]]
) -> bool:
    """Whether a head is the column rather than the one that was found: the earlier of the declared names is."""
    if column not in found:
        return True
    order = COLUMNS[column].names
    place = {name: number for number, name in enumerate(order)}
    return place.get(head.strip().lower(), len(order)) < place.get(
        heads[found[column][0]].strip().lower(), len(order)
    )


def table_of(
    path: Path,
    names: list[str],
    operation: I64,
    numbers: dict[str, F64],
    units_ns: Mapping[str, float | None],
) -> Table:
    """The table of columns as a file has them. units_ns: of each time, None where the file does not name it.

    Raises:
        TraceError: no row has a start and a duration, or they are longer than any training.
    """
    if not len(operation):
        raise TraceError(path, "holds no operation")
    numbers, notes = dict(numbers), []
    times = {name: numbers.pop(name) for name in TIMES if name in numbers}
    guess = _guessed_ns(times)
    if any(units_ns.get(name) is None for name in times):
        word = next(word for word, ns in UNITS_NS.items() if ns == guess)
        notes.append(f"the file names no unit of time, so its times are read in {word}")
    scaled = {name: column * (units_ns.get(name) or guess) for name, column in times.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        length = scaled["duration"] if "duration" in scaled else scaled["end"] - scaled["start"]
        start = scaled["start"]
        valid = np.isfinite(start) & np.isfinite(length) & (length > -_CLOCK_NS) & (length < _LONGEST_S * 1e9)
    if not valid.any():
        raise TraceError(path, "no row has a start and a duration that are times")
    return Table(
        path, names, operation, numbers | {"start": start, "duration": np.maximum(length, 0.0)}, ~valid, notes
    )


def _guessed_ns(times: Mapping[str, F64]) -> float:
    """The unit of times whose columns name none: seconds, and of whole numbers the one that makes operations last
    milliseconds."""
    length = times["duration"] if "duration" in times else times["end"] - times["start"]
    with np.errstate(invalid="ignore"):
        known = length[np.isfinite(length) & (length > 0)]
        if not len(known) or (known != np.floor(known)).any():
            return UNITS_NS["s"]
    typical = float(np.quantile(known, 0.9))
    return next((ns for least, ns in ((1e6, 1.0), (1e3, 1e3)) if typical >= least), UNITS_NS["ms"])


def as_numbers(values: Sequence[object] | np.ndarray[tuple[int], np.dtype[np.generic]]) -> F64:
    """A column as numbers, NaN for what is none."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value) for value in values], np.float64)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # what cannot be a number raises
    except (TypeError, ValueError, OverflowError):
        return float("nan")
