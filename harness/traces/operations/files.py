"""Tables of operations from files: CSV, also compressed, and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.errors import TablesNeeded
from harness.traces.errors import TraceError
from harness.traces.kineto.blocks import Blocks
from harness.traces.operations.recognise import delimiter_of
from harness.traces.operations.table import MOST_ROWS, Table, as_numbers, columns_among, table_of
from harness.traces.operations.vocabulary import TIMES
from harness.traces.progress import OnProgress, silent

_MOST_TEXT_BYTES = 2 << 30
_AT_ONCE = 100_000  # rows


def read_csv(path: Path, progress: OnProgress = silent) -> Table:
    """A table whose first line names its columns.

    Raises:
        ColumnsError: a column is missing.
        TraceError: the file cannot be read, or is damaged.
    """
    rows = _rows(path, progress)
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


def _rows(path: Path, progress: OnProgress) -> Iterator[list[str]]:
    text = _text(path, progress)
    first = text[: text.find("\n")] if "\n" in text else text
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(first))
    try:
        yield from (row for row in reader if row)
    except csv.Error as error:
        raise TraceError(path, f"is damaged in line {reader.line_num}: {error}") from None


def _text(path: Path, progress: OnProgress) -> str:
    blocks, parts, size = Blocks(path, progress), [], 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size > _MOST_TEXT_BYTES:
            raise TraceError(
                path, f"has more than {_MOST_TEXT_BYTES >> 30} GiB of text, the limit for a table"
            )
    if blocks.broken:
        raise TraceError(path, blocks.broken)
    text = b"".join(parts).decode("utf-8-sig", "replace")
    if "\0" in text:
        raise TraceError(path, "is not a table of text: it has null bytes")
    return text


def read_parquet(path: Path, progress: OnProgress = silent) -> Table:
    """The same from Parquet.

    Raises:
        TablesNeeded: pyarrow is not installed.
        ColumnsError: a column is missing.
        TraceError: the file cannot be read, or is damaged.
    """
    if find_spec("pyarrow") is None:
        raise TablesNeeded(str(path))
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
    progress(1, 1)
    return table_of(path, names, operation, numbers, {n: columns[n][1] for n in TIMES if n in columns})


def _coded(column: Any) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """A column of texts as its distinct ones and each row's index."""
    values = column.to_pylist()
    index: dict[str, int] = {}
    codes = [index.setdefault(str(value), len(index)) for value in values]
    return list(index), np.array(codes, np.int64)


def _column(column: Any) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        return as_numbers(column.to_numpy())
    except (NotImplementedError, ValueError):
        return as_numbers(column.to_pylist())
