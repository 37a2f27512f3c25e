"""Files that hold a timeline of operations, read as a table, and what one lacks in a sentence."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.errors import RequestError
from harness.common.printable import printable
from harness.traces.errors import TraceError
from harness.traces.kineto.framing import Blocks
from harness.traces.trace import F64, I64
from stragglers.vocabulary import COLUMNS, TIMES, UNITS_NS, column_of

_MOST_NAMED = 20
MOST_ROWS = 20_000_000
_CLOCK_NS = 1e7  # by which clocks may be wrong: an operation that ends so much before it starts took no time
_LONGEST_S = 1e6  # of an operation, and between the first and the last one of a step
_DELIMITERS = (",", ";", "\t")
_MOST_TEXT_BYTES = 2 << 30
_AT_ONCE = 100_000  # rows


class ColumnsError(RequestError):
    """A table without a column that every timeline of operations has."""


def lacks(path: Path, missing: Sequence[str], found: Sequence[str]) -> ColumnsError:
    """The error of a file without these columns. found: the heads that it has."""
    wanted = [f"{COLUMNS[name].meaning} ({', '.join(COLUMNS[name].names)})" for name in missing]
    heads = [printable(head)[:60] for head in found[:_MOST_NAMED]]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    there = f"its columns are {', '.join(heads)}{more}" if found else "it has no columns"
    return ColumnsError(
        f"{printable(str(path))}: is not a timeline of operations: it lacks a column for {' and for '.join(wanted)}; "
        f"{there}"
    )


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
    """Of each column of a timeline the position of its head and its unit in nanoseconds, if the head names it. Raises
    ColumnsError: a column is missing that every timeline has."""
    found: dict[str, tuple[int, float | None]] = {}
    for position, head in enumerate(heads):
        named = column_of(head)
        if named is not None and _is_better(heads, named[0], head, found):
            found[named[0]] = position, named[1]
    if missing := _missing(found):
        raise lacks(path, missing, heads)
    return found


def _missing(found: Iterable[str]) -> list[str]:
    """Of each column that every timeline has, and that is not found, the first that it may be."""
    choices = (("operation",), ("start",), ("duration", "end"), ("rank", "dp_rank", "stage"))
    return [any_of[0] for any_of in choices if not {*any_of} & {*found}]


def _is_better(heads: Sequence[str], column: str, head: str, found: Mapping[str, tuple[int, float | None]]) -> bool:
    """Whether a head is the column rather than the one that was found: the earlier of the declared names is."""
    if column not in found:
        return True
    order = COLUMNS[column].names
    place = {name: number for number, name in enumerate(order)}
    return place.get(head.strip().lower(), len(order)) < place.get(heads[found[column][0]].strip().lower(), len(order))


def table_of(
    path: Path, names: list[str], operation: I64, numbers: dict[str, F64], units_ns: Mapping[str, float | None]
) -> Table:
    """The table of columns as a file has them. units_ns: of each time, None where the file does not name it. Raises
    TraceError: no row has a start and a duration, or they are longer than any training."""
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
    return Table(path, names, operation, numbers | {"start": start, "duration": np.maximum(length, 0.0)}, ~valid, notes)


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


def read_csv(path: Path) -> Table:
    """A table whose first line names its columns.

    Raises:
        ColumnsError: a column is missing.
        TraceError: the file cannot be read, or is damaged.
    """
    rows = _rows(path)
    heads = next(rows, [])
    columns = columns_among(path, heads)
    last = max(position for position, _ in columns.values())
    index: dict[str, int] = {}
    operation: list[int] = []
    parts: dict[str, list[Any]] = {name: [] for name in columns if name != "operation"}
    number = columns["operation"][0]
    while some := list(islice(rows, _AT_ONCE)):
        whole = [row for row in some if len(row) > last]
        operation += [index.setdefault(row[number], len(index)) for row in whole]
        for name, part in parts.items():
            part.append(as_numbers([row[columns[name][0]] for row in whole]))
        if len(operation) > MOST_ROWS:
            raise TraceError(path, f"has more than {MOST_ROWS:,} rows, more than any job of a few steps")
    numbers = {name: np.concatenate(part) if part else np.empty(0) for name, part in parts.items()}
    units = {name: columns[name][1] for name in TIMES if name in columns}
    return table_of(path, list(index), np.array(operation, np.int64), numbers, units)


def _rows(path: Path) -> Iterator[list[str]]:
    text = _text(path)
    first = text[: text.find("\n")] if "\n" in text else text
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=first.count))
    try:
        yield from (row for row in reader if row)
    except csv.Error as error:
        raise TraceError(path, f"is damaged in line {reader.line_num}: {error}") from None


def _text(path: Path) -> str:
    blocks, parts, size = Blocks(path), [], 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size > _MOST_TEXT_BYTES:
            raise TraceError(path, f"has more than {_MOST_TEXT_BYTES >> 30} GiB of text, the limit for a table")
    if blocks.broken:
        raise TraceError(path, blocks.broken)
    text = b"".join(parts).decode("utf-8-sig", "replace")
    if "\0" in text:
        raise TraceError(path, "is not a table of text: it has null bytes")
    return text


def read_parquet(path: Path) -> Table:
    """The same from Parquet.

    Raises:
        ColumnsError: a column is missing.
        TraceError: pyarrow is not installed, or the file cannot be read.
    """
    if find_spec("pyarrow") is None:
        raise TraceError(path, "is read with pyarrow, which is not installed: `pip install pyarrow`")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise TraceError(path, f"has more than {MOST_ROWS:,} rows, more than any job of a few steps")
            columns = columns_among(path, file.schema_arrow.names)
            wanted = {name: file.schema_arrow.names[position] for name, (position, _) in columns.items()}
            content = file.read(columns=list(wanted.values()))
            names, operation = _coded(content.column(wanted.pop("operation")))
            numbers = {name: _column(content.column(head)) for name, head in wanted.items()}
    except (ArrowException, OSError, ValueError, MemoryError) as error:
        said = (str(error).splitlines() or ["it is damaged"])[0]
        raise TraceError(path, f"cannot be read as Parquet: {said}") from None
    return table_of(path, names, operation, numbers, {n: columns[n][1] for n in TIMES if n in columns})


def _coded(column: Any) -> tuple[list[str], I64]:
    """A column of texts as its distinct ones and each row's index."""
    index: dict[str, int] = {}
    codes = [index.setdefault(str(value), len(index)) for value in column.to_pylist()]
    return list(index), np.array(codes, np.int64)


def _column(column: Any) -> F64:
    try:
        return as_numbers(column.to_numpy())
    except (NotImplementedError, ValueError):
        return as_numbers(column.to_pylist())
