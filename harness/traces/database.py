"""A SQLite database that may be damaged: its tables as columns, page by page where it has to be."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.common.display.printable import printable
from harness.traces.columns import unknown
from harness.traces.errors import TraceError
from harness.traces.pages import OtherFormat, Pages
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import F64, I64

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_SPARE_ROOM = 1.3
_IDS_AT_ONCE = 500  # older SQLite takes 999 parameters
# Of SQLite's machine: a row takes some ten, and no less than ten bytes.
_INSTRUCTIONS, _INSTRUCTIONS_PER_BYTE, _INSTRUCTIONS_AT_ONCE = 2_000_000, 50, 10_000


class GrowingColumn:
    """A column that is filled piece by piece, without a second copy of it.

    Unused room costs nothing: the system gives memory only to pages that are written to.
    """

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._count = 0

    def extend(self, piece: I64, share: float) -> None:
        """Append a piece. `share` is the share of all rows that the column has with it."""
        count = self._count + len(piece)
        if count > len(self._values):
            grown = np.empty(int(count / share * _SPARE_ROOM) + len(piece), np.int64)
            grown[: self._count] = self._values[: self._count]
            self._values = grown
        self._values[self._count : count] = piece
        self._count = count

    def column(self) -> I64:
        """All that was appended."""
        return self._values[: self._count]


class FileKind(NamedTuple):
    """The words for a sort of file: `what` it should be, and how its tool makes it."""

    what: str  # an nsys export
    made: str  # as nsys exports it
    again: str  # export it again


NSYS = FileKind("an nsys export", "as nsys exports it", "export it again")


class Database:
    """Read-only access; a missing table has no rows, and a missing column is unknown. Queries are stopped where the
    file's size does not explain them."""

    def __init__(self, path: Path, connection: sqlite3.Connection, progress: OnProgress, kind: FileKind) -> None:
        self.path = path
        self._kind = kind
        self._size = path.stat().st_size
        self._done = 0  # bytes of the tables that were read whole
        self._progress = progress
        self._connection = connection
        self._effort = 0  # of the present query: what SQLite did for it
        self._most_effort = (_INSTRUCTIONS + self._size * _INSTRUCTIONS_PER_BYTE) // _INSTRUCTIONS_AT_ONCE
        connection.set_progress_handler(self._is_too_much, _INSTRUCTIONS_AT_ONCE)
        listed = self._query("SELECT name, rootpage FROM sqlite_master WHERE type IN ('table', 'view')")
        self.tables: dict[str, int] = {str(name): root for name, root in listed if root}
        self._computed_tables = {str(name) for name, root in listed if not root}
        self._columns: dict[str, dict[str, int]] = {}
        self._computed: dict[str, set[str]] = {}

    def _query(self, sql: str, parameters: Iterable[object] = ()) -> list[tuple[Any, ...]]:
        with self._bounded():
            return self._connection.execute(sql, tuple(parameters)).fetchall()

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """One query, with its errors as one sentence, and stopped where it takes more than the file's size explains:
        a table's pages may refer to each other in circles."""
        self._effort = 0
        with _one_sentence(self.path, self._kind):
            try:
                yield
            except sqlite3.OperationalError:
                if self._effort <= self._most_effort:
                    raise
                raise TraceError(self.path, "is damaged: one of its tables cannot be read to its end") from None

    def _is_too_much(self) -> bool:
        """Called by SQLite now and then; True stops the query."""
        self._effort += 1
        return self._effort > self._most_effort

    def columns(self, table: str) -> dict[str, int]:
        """The columns of `table` and their positions; empty for a missing table. Raises TraceError: a view or a virtual
        table has that name; its rows may be anything."""
        if table in self._computed_tables:
            raise TraceError(self.path, f"is not {self._kind.made}: {table} is a view or a virtual table")
        if table not in self.tables:
            return {}
        if table not in self._columns:
            listed = self._query(f'PRAGMA table_xinfo("{table}")')
            self._columns[table] = {str(name): position for position, name, *_ in listed}
            keys = sum(1 for *_, key, _ in listed if key)
            self._computed[table] = {
                str(name)
                for _, name, _, _, default, key, hidden in listed
                if (key and keys == 1) or hidden or default is not None
            }
        return self._columns[table]

    def has_rows(self, table: str) -> bool:
        """Whether there is a table of that name with a row."""
        return bool(self.columns(table)) and bool(self._query(f'SELECT 1 FROM "{table}" LIMIT 1'))

    def integers(self, table: str, *wanted: str) -> dict[str, I64]:
        """Columns of `table` as arrays, -1 for NULL and for a column that this schema does not have."""
        have = self.columns(table)
        there = [name for name in wanted if name in have]
        if not there:
            return {name: np.empty(0, np.int64) for name in wanted}
        try:
            if self._computed[table]:
                raise OtherFormat  # pages do not hold such a value, or at another place
            found = self._from_pages(table, there)
        except OtherFormat:
            found = self._from_queries(table, there)
        count = len(found[there[0]])
        return {name: found[name] if name in have else unknown(count) for name in wanted}

    def _from_pages(self, table: str, column_names: list[str]) -> dict[str, I64]:
        position = self.columns(table)
        by_position = sorted(column_names, key=lambda name: position[name])
        found = {name: GrowingColumn() for name in by_position}
        pages = Pages(self.path)
        for columns in pages.columns(self.tables[table], [position[name] for name in by_position]):
            self._progress(self._done + pages.read_bytes, self._size)
            for name, column in zip(by_position, columns, strict=True):
                found[name].extend(column, pages.share_read)
        self._done += pages.read_bytes
        return {name: growing.column() for name, growing in found.items()}

    def _from_queries(self, table: str, column_names: list[str]) -> dict[str, I64]:
        chosen = ",".join(f'ifnull("{name}",-1)' for name in column_names)
        with self._bounded():
            rows = self._connection.execute(f'SELECT {chosen} FROM "{table}"')
            flat = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, len(column_names))
        return {name: flat[:, i].copy() for i, name in enumerate(column_names)}

    def measured(
        self, table: str, *wanted: str, value: str, only: tuple[str, Iterable[int]]
    ) -> tuple[dict[str, I64], F64]:
        """Columns as `integers` gives them, and one of any numbers, of the rows where the column `only` has one of its
        values. Without one of these two columns there are no rows."""
        have, values = self.columns(table), list(only[1])
        if value not in have or only[0] not in have:
            return {name: np.empty(0, np.int64) for name in wanted}, np.empty(0)
        chosen = ",".join(f'ifnull("{name}",-1)' if name in have else "-1" for name in (*wanted, value))
        where = f'"{only[0]}" IN ({",".join("?" * len(values))})'
        kinds = np.dtype([*((name, np.int64) for name in wanted), (value, np.float64)])
        with self._bounded():
            rows = self._connection.execute(f'SELECT {chosen} FROM "{table}" WHERE {where}', values)
            found = np.fromiter(rows, kinds)
        return {name: found[name].copy() for name in wanted}, found[value].copy()

    def rows(
        self, table: str, *wanted: str, only: tuple[str, Iterable[object]] | None = None, filled: Iterable[str] = ()
    ) -> list[tuple[Any, ...]]:
        """Rows of a small table, None for a column that this schema does not have; no rows of a missing table.

        `only` is a column and its wanted values; without this column there are no rows.
        `filled` are columns of which at least one must not be NULL.
        """
        have = self.columns(table)
        column, values = (only[0], list(only[1])) if only else (None, [])
        not_null = [f'"{name}" IS NOT NULL' for name in filled if name in have]
        if not have or (only and column not in have) or (filled and not not_null):
            return []
        chosen = ",".join(f'"{name}"' if name in have else "NULL" for name in wanted)
        conditions = [f'"{column}" IN ({",".join("?" * len(values))})'] if only else []
        conditions += [f"({' OR '.join(not_null)})"] if not_null else []
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return self._query(f'SELECT {chosen} FROM "{table}" {where}', values)

    def texts(self, ids: Iterable[int], table: str, column: str) -> dict[int, str]:
        """The texts in `column` of the rows of `table` that have these ids; none for NULL."""
        if not {"id", column} <= set(self.columns(table)):
            return {}
        wanted, found = list(ids), dict[int, str]()
        for first in range(0, len(wanted), _IDS_AT_ONCE):
            some = wanted[first : first + _IDS_AT_ONCE]
            places = ",".join("?" * len(some))
            sql = f'SELECT id, "{column}" FROM "{table}" WHERE id IN ({places})'
            found.update((number, str(text)) for number, text in self._query(sql, some) if text is not None)
        return found


def whole(value: object) -> int | None:
    """A value of any column as a number; None for NULL and for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@contextmanager
def _one_sentence(path: Path, kind: FileKind) -> Iterator[None]:
    """SQLite's errors, and those of values that are not numbers, as one sentence about the file."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise TraceError(path, f"cannot be read as {kind.what} ({error})") from error


@contextmanager
def opened(path: Path, progress: OnProgress = silent, kind: FileKind = NSYS) -> Iterator[Database]:
    """The database at `path`, only for reading. Raises TraceError: the file is damaged, or not a database."""
    for beside in (path.with_name(path.name + ending) for ending in ("-journal", "-wal")):
        if beside.is_file() and beside.stat().st_size > 0:
            finish = f"let SQLite finish it (`sqlite3 {printable(shlex.quote(str(path)))} .schema`), or {kind.again}"
            raise TraceError(path, f"was not written to its end: {beside.name} holds a part of the data: {finish}")
    _check_whole(path, kind)
    with _one_sentence(path, kind):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    # One damaged character must not make the file unreadable.
    connection.text_factory = lambda stored: stored.decode("utf-8", "replace")
    with closing(connection):
        connection.execute("PRAGMA trusted_schema=OFF")
        yield Database(path, connection, progress, kind)


def _check_whole(path: Path, kind: FileKind) -> None:
    """Raises TraceError: the file is shorter than its header says."""
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if not head.startswith(_MAGIC) or len(head) < _HEADER_BYTES:
        return
    page_bytes = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    size = path.stat().st_size
    if size < expected:
        raise TraceError(
            path, f"is cut off: {size / 1e6:.1f} of its {expected / 1e6:.1f} MB are there; copy or {kind.again}"
        )


def json_object(text: str) -> dict[str, Any]:
    """The object that a cell's text holds; empty where it holds none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
