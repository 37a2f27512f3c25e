"""Columns read straight from SQLite's pages are the columns that SQLite gives."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.traces.database import opened
from harness.traces.pages import OtherFormat, Pages

INTEGERS = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.sampled_from([0, 1, -1, 2**47, -(2**47)])
)
ROWS = st.lists(st.tuples(INTEGERS, st.one_of(st.none(), st.text(max_size=300)), INTEGERS, INTEGERS), max_size=200)


def written(path: Path, rows: list[tuple[Any, ...]], page_bytes: int = 4096, repeat: int = 1) -> Path:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA page_size={page_bytes}")
        connection.execute("CREATE TABLE other (a INT)")
        connection.execute("CREATE TABLE t (a INT, b TEXT, c INT, d INT)")
        for _ in range(repeat):
            connection.executemany("INSERT INTO t VALUES (?,?,?,?)", rows)
            connection.executemany("INSERT INTO other VALUES (?)", [(i,) for i in range(50)])
    connection.close()
    return path


def by_sqlite(path: Path, column: str) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute(f"SELECT ifnull({column}, -1) FROM t")]


@settings(max_examples=80, deadline=None)
@given(ROWS, st.sampled_from([512, 1024, 4096, 65536]), st.sampled_from([1, 20]))
def test_any_integers_on_any_pages(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], page_bytes: int, repeat: int
) -> None:
    path = written(tmp_path_factory.mktemp("pages") / "t.sqlite", rows, page_bytes, repeat)
    with opened(path) as database:
        read = database.integers("t", "d", "a", "c")
    assert {name: values.tolist() for name, values in read.items()} == {n: by_sqlite(path, n) for n in "dac"}


def test_a_large_table_needs_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(i, None, i * i, -i) for i in range(3_000)]
    path = written(tmp_path / "t.sqlite", rows, 512, repeat=20)
    with opened(path) as database:
        monkeypatch.setattr(database, "_from_queries", None)
        read = database.integers("t", "a", "c")
    assert np.array_equal(read["a"], np.tile(np.arange(3_000), 20))
    assert np.array_equal(read["c"], np.tile(np.arange(3_000) ** 2, 20))


@pytest.mark.parametrize(
    "rows", [[(1, "x" * 9_000, 2, 3)], [(1, "b", 2.5, 3)], [(1, "b", "text", 3)]], ids=["overflow", "float", "text"]
)
def test_what_is_not_read_from_pages_is_asked_of_sqlite(tmp_path: Path, rows: list[tuple[Any, ...]]) -> None:
    path = written(tmp_path / "t.sqlite", rows * 3)
    with opened(path) as database, pytest.raises(OtherFormat):
        list(Pages(path).columns(database.tables["t"], [0, 2]))
    if rows[0][2] == 2:
        with opened(path) as database:
            assert database.integers("t", "a", "c")["c"].tolist() == [2, 2, 2]


def test_a_column_added_later_is_null_in_older_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t.sqlite", [(1, None, 2, 3)] * 4)
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN e INT")
        connection.execute("INSERT INTO t VALUES (1, NULL, 2, 3, 4)")
    connection.close()
    with opened(path) as database:
        assert database.integers("t", "d", "e")["e"].tolist() == [-1, -1, -1, -1, 4]
