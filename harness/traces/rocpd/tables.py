"""The tables of a rocpd database, one set of them for each recorded process, and what joins their rows.

Schema: rocprofiler-sdk, source/share/rocprofiler-sdk-rocpd/versions (3.0.0 to 3.0.5). A table's name ends with the
recording's unique id, so that several recordings fit into one file; ids are only unique within a recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from harness.traces.columns import NameTable, distinct_rows
from harness.traces.database import Database, whole
from harness.traces.trace import I32, I64

_METADATA = re.compile(r"rocpd_metadata(_\w{1,64})?", re.ASCII)


class Recording:
    """The tables whose names end with `suffix`."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database = database
        self._suffix = suffix

    def table(self, name: str) -> str:
        """The table's whole name."""
        return f"rocpd_{name}{self._suffix}"

    def columns(self, name: str) -> set[str]:
        """The columns of a table; empty for one that is not there."""
        return set(self.database.columns(self.table(name)))

    def integers(self, name: str, *wanted: str) -> dict[str, I64]:
        """Columns of a table as arrays, -1 for NULL and for a missing column."""
        return self.database.integers(self.table(name), *wanted)

    def texts(self, ids: I64, table: str = "string", column: str = "string") -> dict[int, str]:
        """The texts of rows of a table by their ids."""
        present, _ = distinct_rows(ids)
        return self.database.texts(present.tolist(), self.table(table), column)

    @cached_property
    def events(self) -> Joined:
        """What all kinds of rows share: the category, and the number of the call that they belong to."""
        return Joined(self.integers("event", "id", "category_id", "stack_id"))

    @cached_property
    def _pids(self) -> dict[int, int]:
        return self._numbers("info_process", "pid")

    @cached_property
    def _tids(self) -> dict[int, int]:
        return self._numbers("info_thread", "tid")

    def _numbers(self, table: str, column: str) -> dict[int, int]:
        rows = self.database.rows(self.table(table), "id", column)
        return {i: n for i, n in rows if whole(i) is not None and whole(n) is not None}

    def pids(self, ids: I64) -> I64:
        """The system's numbers of processes."""
        return looked_up(ids, self._pids)

    def tids(self, ids: I64) -> I64:
        """The system's numbers of threads."""
        return looked_up(ids, self._tids)


class Joined:
    """Columns of a table that others refer to by its ids."""

    def __init__(self, columns: dict[str, I64]) -> None:
        ids = columns["id"]
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        self._columns = columns

    def of(self, ids: I64, column: str) -> I64:
        """The column's values for these ids, -1 where there is no such row."""
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        found = self._columns[column][self._order[place]]
        return np.where((self._ids[place] == ids) & (ids >= 0), found, -1)


def looked_up(ids: I64, numbers: dict[int, int]) -> I64:
    """Each id's number; an id that has none stays as it is."""
    present, rows = distinct_rows(ids)
    found: I64 = np.array([numbers.get(i, i) for i in present.tolist()], np.int64)[rows]
    return found


def named(ids: I64, texts: dict[int, str], names: NameTable, default: str) -> I32:
    """Ids of texts as indices of the trace's names."""
    present, rows = distinct_rows(ids)
    index: I32 = names.indices(texts.get(i) or default for i in present.tolist())[rows]
    return index


def recordings(database: Database) -> list[Recording]:
    """The recordings in a database, by the names of its tables."""
    return [Recording(database, suffix) for suffix in sorted(_suffixes(database.tables))]


def _suffixes(tables: Iterable[str]) -> list[str]:
    found = (_METADATA.fullmatch(table) for table in tables)
    return [match.group(1) or "" for match in found if match]
