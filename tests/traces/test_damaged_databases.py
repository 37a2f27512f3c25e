"""Databases of nsys and rocprofv3 that are damaged or made to break the reader: each is one sentence, or what cannot be
true is left out and the report says so."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.traces import TraceError, open_trace
from tests.synthetic import nsys, rocpd
from tests.traces.crafted import outcome
from tests.traces.told import told

KERNELS, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES, RANGES = "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
LATE, ENDED = "are over 104 days from others", "ended before they started"
NO_DEVICE, TOO_LARGE = "whose number no machine has", "1 copies are larger than any memory"
BAD = "cannot be read as an nsys export ("
NOT_A_TABLE = "is not as nsys exports it: {} is a view or a virtual table"
MESSAGE = '"Message size [bytes]": 64, "No. of ranks": 8, "Rank": 1, "NCCL communicator ID": 5'


def of_nsys(path: Path) -> Path:
    """An export with a row of each sort: five events, two ranges of the program, two samples of a counter."""
    made = nsys.nsys_step()
    made.sampled(0, 5, time=20)
    made.sampled(0, 6, time=30)
    made.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=9)
    made.add(RANGES, eventType=75, text="a domain", domainId=None, globalTid=None)
    made.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 50_000, 10, correlation=30)
    made.call("cudaLaunchKernel", 45_000, 100, correlation=30)
    made.range("ncclAllReduce", 44_000, 2_000, payload={"x": 1})
    return made.saved(path)


def times(found: dict[str, Any]) -> tuple[list[int], list[Any]]:
    """Of the events and of the ranges."""
    return sorted(found["start"]), [span[1:] for span in found["range spans"]]


class Damage(NamedTuple):
    """What is done to a database, and what of it the report says; whole: all of its times are read."""

    sql: tuple[str, ...]
    says: str = ""
    whole: bool = False


def rebuilt(table: str, build: str) -> tuple[str, ...]:
    """The same rows in a table of another build, which keeps its values elsewhere in the pages: there the fast way
    would read other numbers."""
    columns = nsys.SCHEMA[table].replace("end INT", '"end" INT')
    whole = {"a key": columns.replace("start INT", "start INTEGER PRIMARY KEY", 1)}
    whole["no row ids"] = columns.replace("start INT", "start INT PRIMARY KEY", 1)
    ending = " WITHOUT ROWID" if build == "no row ids" else ""
    return (
        f"DELETE FROM {table} WHERE start IS NULL",
        f"CREATE TABLE t2 ({whole[build]}){ending}",
        f"INSERT INTO t2 SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE t2 RENAME TO {table}",
    )


def updated(table: str, values: str, which: str = "rowid=1") -> tuple[str, ...]:
    return (f"UPDATE {table} SET {values} WHERE {which}",)


SMALL = [
    ("TARGET_INFO_GPU", "id"), ("TARGET_INFO_GPU", "cuDevice"), ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
    ("TARGET_INFO_SYSTEM_ENV", "value"), ("TARGET_INFO_CUDA_DEVICE", "pid"), ("TARGET_INFO_GPU_METRICS", "typeId"),
]  # fmt: skip
IMPOSSIBLE = [
    (KERNELS, f"start={SMALLEST}", LATE), (KERNELS, f'"end"={LARGEST}', LATE), (KERNELS, '"end"=start-1', ENDED),
    (KERNELS, f'start={SMALLEST}, "end"={LARGEST}', LATE), (KERNELS, '"end"=NULL', ENDED),
    (KERNELS, "deviceId=1000000000000", NO_DEVICE), (KERNELS, "deviceId=-5", NO_DEVICE),
    (KERNELS, f"deviceId={1 << 32}", NO_DEVICE), (COPIES, f"start={SMALLEST}", LATE),
    (COPIES, f"bytes={LARGEST}", TOO_LARGE), (CALLS, f"start={SMALLEST}", LATE), (CALLS, f'"end"={LARGEST}', LATE),
    (RANGES, f"start={SMALLEST}", LATE), (RANGES, f'"end"={LARGEST}', LATE),
    *(("GPU_METRICS", f"value={value}", "have a value that no counter reaches") for value in ("9e18", "-9e18")),
]  # fmt: skip
PROCESSES = (
    "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<1100) "
    f'INSERT INTO {KERNELS} (start, "end", deviceId, streamId, globalPid) '
    "SELECT 50000+i, 50001+i, 0, 7, (1<<48)|(i<<24) FROM c"
)
JSON = "jsonText IS NOT NULL"
TABLES_OF_TIMES = (KERNELS, COPIES, CALLS, RANGES, "CUDA_GPU_MEMORY_USAGE_EVENTS")
OF_NSYS = {
    "each row twice": Damage(
        tuple(f"INSERT INTO {table} SELECT * FROM {table} ORDER BY random()" for table in TABLES_OF_TIMES),
        "4 pieces of work are in the file again, with the same call, start and stream: each counts once", whole=True,
    ),
    "work of a context on another device": Damage(
        (f"UPDATE {KERNELS} SET deviceId=deviceId+1 WHERE rowid=1",), "and a context has one device"
    ),
    **{f"{table}: {values}": Damage(updated(table, values), f"{says}") for table, values, says in IMPOSSIBLE},
    **{
        f"{table}.{column}={value}": Damage(updated(table, f"{column}={value}"), BAD)
        for table, column in ((KERNELS, "start"), (RANGES, "textId"))
        for value in ("'text'", "9e999")
    },
    **{
        f"{table}.{column}={value}": Damage(updated(table, f"{column}={value}", "1"), whole=True)
        for table, column in SMALL
        for value in ("'text'", "NULL", "1.5", "x'00'")
    },
    **{
        f"{table}: a view": Damage(
            (f"ALTER TABLE {table} RENAME TO x", f"CREATE VIEW {table} AS SELECT * FROM x"), NOT_A_TABLE.format(table)
        )
        for table in (KERNELS, RANGES, "StringIds", "META_DATA_EXPORT")
    },
    "StringIds: a virtual table": Damage(
        ("DROP TABLE StringIds", "CREATE VIRTUAL TABLE StringIds USING fts4(id, value)"),
        NOT_A_TABLE.format("StringIds"),
    ),
    "a table of another spelling": Damage(
        (f"ALTER TABLE {KERNELS} RENAME TO x", f"ALTER TABLE x RENAME TO {KERNELS.lower()}")
    ),
    **{
        f"{table}: with {build}": Damage(rebuilt(table, build), whole=True)
        for table in (KERNELS, CALLS, COPIES, RANGES)
        for build in ("a key", "no row ids")
    },
    **{
        f"a payload {text[:8]}": Damage(updated(RANGES, f"jsonText='{text}'", JSON), whole=True)
        for text in ("[" * 100_000, "null")
    },
    **{
        f"a payload's {key}={value}": Damage(
            updated(RANGES, f"""jsonText='{{{MESSAGE}, "{key}": {value}}}'""", JSON), whole=True
        )
        for key in ("Message size [bytes]", "No. of ranks", "Rank")
        for value in ("1" + "0" * 30, "-1", "10000000000000", "true")
    },
    "more processes than a node has": Damage((PROCESSES,), "is damaged: it has work of more than 1024 processes"),
    "a rank of five thousand digits": Damage(
        (*updated(RANGES, f"text='rank {'9' * 5000}'", "text='forward'"),
         f"INSERT INTO DIAGNOSTIC_EVENT (text) VALUES ('{'9' * 5000} events were dropped')"), whole=True,
    ),
    "empty tables": Damage(tuple(f"DELETE FROM {table}" for table in nsys.SCHEMA), "0 events"),
    "of another program": Damage(
        (*(f"DROP TABLE {table}" for table in nsys.SCHEMA), "CREATE TABLE users (name TEXT)"), "not an export of nsys"
    ),
}  # fmt: skip
_IDS = "rowid IN (1, 4, 9, 77)"  # of a GPU, a process with its thread, and a node, too
OF_ROCPD = {
    **{
        f"{table}: {values}": Damage(updated(f"rocpd_{table}_0190", values), says)
        for table, values, says in (
            ("kernel_dispatch", '"end"=start-1', ENDED), ("kernel_dispatch", f"start={SMALLEST}", LATE),
            ("kernel_dispatch", "agent_id=1000000000000", NO_DEVICE), ("memory_copy", f"size={LARGEST}", TOO_LARGE),
            ("region", f'"end"={LARGEST}', LATE),
        )
    },
    **{
        f"{table}.{column}={value[:9]}": Damage(
            updated(f"rocpd_{table}_0190", f"{column}={value}", "rowid=1" if table == "string" else _IDS), whole=True
        )
        for table, column in (
            ("info_process", "environment"), ("info_process", "pid"), ("info_thread", "tid"), ("event", "extdata"),
            ("info_agent", "type_index"), ("info_node", "hostname"), ("arg", "value"), ("string", "string"),
            ("metadata", "value"),
        )
        for value in ("'text'", "'{'", "1.5", "x'00'", "'[1]'", f"'{'[' * 3000}'")
    },
    "of another schema": Damage(
        ("ALTER TABLE rocpd_kernel_dispatch_0190 RENAME COLUMN agent_id TO track_id",),
        "has a schema that is not known: rocpd_kernel_dispatch_0190 has no column agent_id "
        "(read are rocpd's versions 3.0.0 to 3.0.5)",
    ),
    "of several machines": Damage(
        ("UPDATE rocpd_info_node_0191 SET machine_id='m2'",),
        "holds recordings of several machines, whose clocks do not agree: give each machine's own databases",
    ),
    "with a text for a time": Damage(
        updated("rocpd_kernel_dispatch_0190", "start='text'"),
        "cannot be read as a database of rocprofv3 (invalid literal for int() with base 10: 'text')",
    ),
    "without its list": Damage(
        ("DROP TABLE rocpd_metadata_0190", "DROP TABLE rocpd_metadata_0191"),
        "is an SQLite database, but not one of rocprofv3: it has no rocpd_metadata table",
    ),
    "of too many": Damage(
        tuple(f"CREATE TABLE rocpd_metadata_x{i} (tag TEXT)" for i in range(255)),
        "is damaged: it holds more than 256 recordings",
    ),
}  # fmt: skip
MAKERS: dict[str, Callable[[Path], Path]] = {"t.sqlite": of_nsys, "t.db": rocpd.rocpd_job}
DAMAGES = [("t.sqlite", name) for name in OF_NSYS] + [("t.db", name) for name in OF_ROCPD]


@pytest.mark.parametrize(("file", "name"), DAMAGES)
def test_of_a_damaged_database_the_report_says_what_is_left_out_or_one_sentence(
    tmp_path: Path, file: str, name: str
) -> None:
    damage = (OF_NSYS if file == "t.sqlite" else OF_ROCPD)[name]
    path = MAKERS[file](tmp_path / file)
    before = told(open_trace(path))
    with sqlite3.connect(path) as database:
        for statement in damage.sql:
            database.execute(statement)
    database.close()
    assert damage.says in outcome(path)
    try:
        after = told(open_trace(path))
    except TraceError:
        assert not damage.whole
        return
    assert {*after["start"]} <= {*before["start"]}, "what is left was recorded"
    assert not damage.whole or times(after) == times(before)
    assert {size for _, size in after["messages"]} <= {-1, 64, 2097152 * 2}
    assert after["world"][0] in (None, 2, 8)


@pytest.mark.parametrize("file", MAKERS)
def test_a_database_that_is_cut_anywhere_is_one_sentence(tmp_path: Path, file: str) -> None:
    whole = MAKERS[file](tmp_path / file).read_bytes()
    for cut in (1, 50, 99, 100, 5_000, len(whole) // 2, len(whole) - 1):
        (tmp_path / file).write_bytes(whole[:cut])
        with pytest.raises(TraceError):
            open_trace(tmp_path / file)


NOT_THEIRS = [
    ("t.sqlite", b"", "is empty"), ("t.sqlite", b"no database at all, but long enough to be one" * 9, "nsys export"),
    ("t.sqlite", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ("t.db", b"no database" * 100, "cannot be read as a database of rocprofv3 (file is not a database)"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "says"), NOT_THEIRS)
def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path, file: str, content: bytes, says: str) -> None:
    (tmp_path / file).write_bytes(content)
    assert says in outcome(tmp_path / file)


def test_damaged_pages_never_become_numbers(tmp_path: Path) -> None:
    path = of_nsys(tmp_path / "t.sqlite")
    whole, starts = path.read_bytes(), set(told(open_trace(path))["start"])
    for page, hole in product(range(1, len(whole) // 4096), (b"\xaa", b"\0")):
        path.write_bytes(whole[: 4096 * page] + hole * 4096 + whole[4096 * (page + 1) :])
        try:
            assert set(told(open_trace(path))["start"]) <= starts
        except TraceError:
            continue


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
    for cell in range(int.from_bytes(page[3:5], "big")):
        at = int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big")
        page[at : at + 4] = root.to_bytes(4, "big")
    page[8:12] = root.to_bytes(4, "big")
    data[512 * (root - 1) : 512 * root] = page
    path.write_bytes(data)
    assert outcome(path).startswith((BAD, "is damaged: reading a table"))


@pytest.mark.parametrize("ending", ["-journal", "-wal"])
def test_an_export_of_which_a_part_lies_beside_it_is_one_sentence(tmp_path: Path, ending: str) -> None:
    path = of_nsys(tmp_path / "t.sqlite")
    beside = tmp_path / f"t.sqlite{ending}"
    beside.write_bytes(b"")
    assert len(open_trace(path).events) == 5
    beside.write_bytes(b"rows that are not in the file yet")
    finish = f"let SQLite finish it (`sqlite3 {path} .schema`), or export it again"
    assert outcome(path) == f"was not written to its end: t.sqlite{ending} holds a part of the data: {finish}"


class _Usage(NamedTuple):
    free: int


def test_a_packed_export_is_read_if_it_is_whole_and_fits_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.sqlite.gz"
    packed = gzip.compress(of_nsys(tmp_path / "t.sqlite").read_bytes())
    path.write_bytes(packed)
    assert len(open_trace(path).events) == 5
    path.write_bytes(packed[:-200])
    assert "compressed file is damaged" in outcome(path)
    path.write_bytes(packed)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: _Usage(free=100 << 20))
    assert "has no room for its" in outcome(path) and "TMPDIR" in outcome(path)
