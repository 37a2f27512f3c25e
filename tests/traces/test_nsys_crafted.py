"""Exports made to break the reader: each is one sentence, or what cannot be true is left out and the report says so."""

from __future__ import annotations

import gzip
import resource
import shutil
import sqlite3
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from harness.traces import open_trace
from tests.synthetic import nsys
from tests.traces.crafted import outcome

KERNELS, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES, RANGES = "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1


def changed(path: Path, *statements: str, made: nsys.Nsys | None = None) -> Path:
    """An export after some SQL."""
    (made or nsys.nsys_step()).saved(path)
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()
    return path


@pytest.mark.parametrize("table", [KERNELS, CALLS, COPIES, RANGES, "StringIds", "META_DATA_EXPORT", "TARGET_INFO_GPU"])
def test_a_view_in_a_tables_place_is_read_as_the_table(tmp_path: Path, table: str) -> None:
    whole = open_trace(nsys.nsys_step().saved(tmp_path / "t.sqlite"))
    view = f"CREATE VIEW {table} AS SELECT * FROM other"
    found = open_trace(changed(tmp_path / "t.sqlite", f"ALTER TABLE {table} RENAME TO other", view))
    for name in ("events", "calls", "ranges", "host", "collectives"):
        for ours, theirs in zip(astuple(getattr(found, name)), astuple(getattr(whole, name)), strict=True):
            assert np.array_equal(ours, theirs)
    assert (found.names, found.identity, found.notes) == (whole.names, whole.identity, whole.notes)


@pytest.mark.parametrize(
    "table",
    [
        KERNELS, "StringIds", "TARGET_INFO_GPU",  # one of each way in which tables are read
        *(pytest.param(table, marks=pytest.mark.long) for table in (CALLS, COPIES, RANGES, "META_DATA_EXPORT")),
    ],
)  # fmt: skip
def test_a_view_without_end_or_of_itself_is_one_sentence_or_without_rows(tmp_path: Path, table: str) -> None:
    counted = "c(start) AS (SELECT 1 UNION ALL SELECT start+1 FROM c)"
    endless = f"CREATE VIEW {table} AS WITH RECURSIVE {counted} SELECT * FROM c"
    itself = f"CREATE VIEW {table} AS SELECT * FROM {table}"
    for view in (endless, itself, f"CREATE VIEW {table} AS SELECT * FROM not_there"):
        said = outcome(changed(tmp_path / "t.sqlite", f"ALTER TABLE {table} RENAME TO other", view))
        assert "cannot be read" in said or view == endless


@pytest.mark.parametrize(
    "text", ["hex(zeroblob(900000000))", "hex(zeroblob(300000))", "(SELECT group_concat(value) FROM big, big, big)"]
)
def test_a_view_makes_no_more_text_than_the_file_explains(tmp_path: Path, text: str) -> None:
    rows = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<50000) SELECT"
    path = changed(
        tmp_path / "t.sqlite", "DROP TABLE META_DATA_EXPORT",
        f"CREATE VIEW META_DATA_EXPORT(name, value) AS {rows} i, {text} FROM c",
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "is damaged: one of its views" in (said := outcome(path)) or "cannot be read as an nsys export" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_a_virtual_table_in_a_tables_place_is_not_read(tmp_path: Path) -> None:
    path = changed(
        tmp_path / "t.sqlite", "DROP TABLE StringIds", "CREATE VIRTUAL TABLE StringIds USING fts4(id, value)"
    )
    assert outcome(path) == "is not as nsys exports it: StringIds is a virtual table"


def test_a_table_of_another_spelling_is_missing(tmp_path: Path) -> None:
    path = changed(
        tmp_path / "t.sqlite", f"ALTER TABLE {KERNELS} RENAME TO x", f"ALTER TABLE x RENAME TO {KERNELS.lower()}"
    )
    assert len(open_trace(path).events) == 2


@pytest.mark.parametrize(("table", "values", "says"), [
    (KERNELS, f"start={SMALLEST}", "are over 104 days from others"),
    (KERNELS, f'"end"={LARGEST}', "are over 104 days from others"),
    (KERNELS, f'start={SMALLEST}, "end"={LARGEST}', "are over 104 days from others"),
    (KERNELS, '"end"=start-1', "ended before they started"), (KERNELS, '"end"=NULL', "ended before they started"),
    (KERNELS, "deviceId=1000000000000", "1 events are on a device whose number no machine has"),
    (KERNELS, "deviceId=-5", "whose number no machine has"),
    (KERNELS, f"deviceId={1 << 32}", "whose number no machine has"),
    (COPIES, f'start={SMALLEST}', "are over 104 days"),
    (COPIES, f"bytes={LARGEST}", "1 copies are larger than any memory"),
    (CALLS, f'start={SMALLEST}', "are over 104 days"), (CALLS, f'"end"={LARGEST}', "are over 104 days"),
    (RANGES, f'start={SMALLEST}', "are over 104 days"), (RANGES, f'"end"={LARGEST}', "are over 104 days"),
])  # fmt: skip
def test_a_row_that_cannot_be_true_is_left_out_and_said(tmp_path: Path, table: str, values: str, says: str) -> None:
    path = changed(tmp_path / "t.sqlite", f"UPDATE {table} SET {values} WHERE rowid=1")
    assert says in outcome(path) and "left out" in outcome(path)
    whole = open_trace(nsys.nsys_step().saved(tmp_path / "whole.sqlite")).events
    assert set(open_trace(path).events.start_ns.tolist()) <= set(whole.start_ns.tolist())


@pytest.mark.parametrize("value", ["9e18", "-9e18"])
def test_a_counter_that_shows_what_none_reaches_is_left_out_and_said(tmp_path: Path, value: str) -> None:
    made = nsys.nsys_step()
    made.sampled(0, 5, time=20)
    made.sampled(0, 6, time=30)
    path = changed(tmp_path / "t.sqlite", f"UPDATE GPU_METRICS SET value={value} WHERE rowid=2", made=made)
    assert "1 samples of counters have a value that no counter reaches: left out" in outcome(path)
    assert [series.value.tolist() for series in open_trace(path).metrics] == [[5]]


@pytest.mark.parametrize("value", ["'text'", "9e999"])
@pytest.mark.parametrize(("table", "column"), [(KERNELS, "start"), (RANGES, "textId")])
def test_what_is_no_number_in_a_column_of_numbers_is_one_sentence(
    tmp_path: Path, table: str, column: str, value: str
) -> None:
    path = changed(tmp_path / "t.sqlite", f"UPDATE {table} SET {column}={value} WHERE rowid=1")
    assert outcome(path).startswith("cannot be read as an nsys export (")


@pytest.mark.parametrize("value", ["'text'", "NULL", "1.5", "x'00'"])
@pytest.mark.parametrize(("table", "column"), [
    ("TARGET_INFO_GPU", "id"), ("TARGET_INFO_GPU", "cuDevice"), ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
    ("TARGET_INFO_SYSTEM_ENV", "value"), ("TARGET_INFO_CUDA_DEVICE", "pid"), ("TARGET_INFO_GPU_METRICS", "typeId"),
])  # fmt: skip
def test_odd_values_in_the_small_tables_do_no_harm(tmp_path: Path, table: str, column: str, value: str) -> None:
    made = nsys.nsys_step()
    made.sampled(1, 50)
    made.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=9)
    made.add(RANGES, eventType=75, text="a domain", domainId=None, globalTid=None)
    outcome(changed(tmp_path / "t.sqlite", f"UPDATE {table} SET {column}={value}", made=made))
    assert len(open_trace(tmp_path / "t.sqlite").events) == 4


@pytest.mark.parametrize("table", [KERNELS, CALLS, COPIES, RANGES])
def test_a_table_of_another_build_is_read_as_sqlite_reads_it(tmp_path: Path, table: str) -> None:
    """Such tables keep their values elsewhere in the pages, so the fast way would read other numbers."""
    columns = nsys.SCHEMA[table].replace("end INT", '"end" INT')
    for build in (
        f"CREATE TABLE t2 ({columns.replace('start INT', 'start INTEGER PRIMARY KEY')})",
        f"CREATE TABLE t2 ({columns.replace('start INT', 'start INT PRIMARY KEY')}) WITHOUT ROWID",
    ):
        path = changed(
            tmp_path / "t.sqlite",
            build,
            f"INSERT INTO t2 SELECT * FROM {table}",
            f"DROP TABLE {table}",
            f"ALTER TABLE t2 RENAME TO {table}",
        )
        whole = open_trace(nsys.nsys_step().saved(tmp_path / "whole.sqlite"))
        assert open_trace(path).events.start_ns.tolist() == whole.events.start_ns.tolist()
        assert open_trace(path).ranges.start_ns.tolist() == whole.ranges.start_ns.tolist()


@pytest.mark.parametrize("table", [KERNELS, "StringIds"])
def test_pages_that_refer_to_each_other_in_circles_are_one_sentence(tmp_path: Path, table: str) -> None:
    """Two levels of a table's pages whose children are one and the same page: read as they are, without end."""
    made = nsys.nsys_step()
    for i in range(3000):
        made.kernel(f"kernel number {i} of many", 100_000 + 10 * i, 5)
    path = made.saved(tmp_path / "t.sqlite", page_bytes=512)
    with sqlite3.connect(path) as database:
        ((root,),) = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name='{table}'")
    database.close()
    data = bytearray(path.read_bytes())
    page = data[512 * (root - 1) : 512 * root]
    assert page[0] == 5, "an interior page"
    count = int.from_bytes(page[3:5], "big")
    for cell in range(count):
        at = int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big")
        page[at : at + 4] = root.to_bytes(4, "big")
    page[8:12] = root.to_bytes(4, "big")
    data[512 * (root - 1) : 512 * root] = page
    path.write_bytes(data)
    assert outcome(path).startswith(("cannot be read as an nsys export (", "is damaged: reading a table"))


def test_an_export_whose_transaction_is_not_finished_is_one_sentence(tmp_path: Path) -> None:
    path = nsys.nsys_step().saved(tmp_path / "t.sqlite")
    beside = tmp_path / "t.sqlite-journal"
    beside.write_bytes(b"")
    assert len(open_trace(path).events) == 4
    beside.write_bytes(b"rows that are not in the file yet")
    assert outcome(path) == "was not written to its end: t.sqlite-journal holds a part of the data; export it again"


def logged(folder: Path) -> Path:
    """An export of which SQLite's log beside it has a part: the names of its kernels and one kernel."""
    made = nsys.nsys_step().saved(folder / "made.sqlite")
    connection = sqlite3.connect(made)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS} LIMIT 1")
    last = f"(SELECT max(rowid) FROM {KERNELS})"
    connection.execute(f'UPDATE {KERNELS} SET start=start+70000, "end"="end"+70000 WHERE rowid={last}')
    connection.commit()
    for ending in ("", "-wal"):
        shutil.copy(f"{made}{ending}", folder / f"t.sqlite{ending}")
    connection.close()
    return folder / "t.sqlite"


def test_what_sqlite_has_written_into_a_log_is_read_and_nothing_is_changed(tmp_path: Path) -> None:
    path = logged(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("t.sqlite*")}
    assert set(before) == {"t.sqlite", "t.sqlite-wal"} and before["t.sqlite-wal"]
    tmp_path.chmod(0o500)
    try:
        assert len(open_trace(path).events) == 5
    finally:
        tmp_path.chmod(0o700)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("t.sqlite*")} == before
    (tmp_path / "t.sqlite-wal").write_bytes(b"")
    assert len(open_trace(path).events) == 4


@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_of_a_log_that_is_cut_or_is_none_sqlite_s_own_reading_counts(tmp_path: Path, share: float) -> None:
    path = logged(tmp_path)
    log = tmp_path / "t.sqlite-wal"
    log.write_bytes(log.read_bytes()[: int(log.stat().st_size * share)] or b"no log at all")
    assert len(open_trace(path).events) == 4
    path.write_bytes(b"\0" * 5000)
    assert "export" in outcome(path)


@pytest.mark.parametrize("payload", ["[" * 100_000, "null"], ids=lambda text: text[:8])
def test_a_payload_that_is_none_does_no_harm(tmp_path: Path, payload: str) -> None:
    made = nsys.nsys_step()
    made.range("ncclAllReduce", 44_000, 2_000, payload={})
    changed(tmp_path / "t.sqlite", f"UPDATE {RANGES} SET jsonText='{payload}' WHERE jsonText IS NOT NULL", made=made)
    assert "cannot" not in outcome(tmp_path / "t.sqlite")


@pytest.mark.parametrize("key", ["Message size [bytes]", "No. of ranks", "Rank"])
@pytest.mark.parametrize("value", ["1" + "0" * 30, "-1", "10000000000000", "true"])
def test_numbers_of_a_payload_that_no_message_has_are_not_used(tmp_path: Path, key: str, value: str) -> None:
    made = nsys.nsys_step()
    made.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 50_000, 10, correlation=30)
    made.call("cudaLaunchKernel", 45_000, 100, correlation=30)
    made.range("ncclAllReduce", 44_000, 2_000, payload={"x": 1})
    fields = {"Message size [bytes]": "64", "No. of ranks": "8", "Rank": "1", "NCCL communicator ID": "5", key: value}
    text = "{" + ", ".join(f'"{name}": {number}' for name, number in fields.items()) + "}"
    path = changed(
        tmp_path / "t.sqlite", f"UPDATE {RANGES} SET jsonText='{text}' WHERE jsonText IS NOT NULL", made=made
    )
    outcome(path)
    trace = open_trace(path)
    assert trace.collectives.bytes.tolist() in ([64], [-1])
    assert trace.identity.world_size in (8, 1, None) and trace.identity.rank in (1, None)


def test_more_processes_than_a_node_has_are_one_sentence(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    for pid in range(1100):
        made.kernel("k", 50_000 + pid, 1, pid=pid + 1)
    assert outcome(made.saved(tmp_path / "t.sqlite")) == "is damaged: it has work of more than 1024 processes"


def test_a_rank_of_five_thousand_digits_is_none(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made.range("rank " + "9" * 5000, 1_000, 90_000)
    made.add("DIAGNOSTIC_EVENT", text="9" * 5000 + " events were dropped")
    assert "cannot" not in outcome(made.saved(tmp_path / "t.sqlite"))


def test_an_export_of_empty_tables_is_said(tmp_path: Path) -> None:
    path = changed(tmp_path / "t.sqlite", *(f"DELETE FROM {table}" for table in nsys.SCHEMA))
    assert "0 events" in outcome(path)


class _Usage(NamedTuple):
    free: int


def test_an_export_that_does_not_fit_on_the_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "t.sqlite.gz"
    packed.write_bytes(gzip.compress(nsys.nsys_step().saved(tmp_path / "t.sqlite").read_bytes()))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: _Usage(free=100 << 20))
    assert "has no room for its" in outcome(packed) and "TMPDIR" in outcome(packed)
