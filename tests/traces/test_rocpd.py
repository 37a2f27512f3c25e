"""Databases of rocprofv3 made by us (none was recorded on a GPU): their content, and what a report says of them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.traces import TraceError, find_traces, open_trace
from harness.traces.trace import Activity, CopyKind, RangeKind, Trace
from tests.synthetic.nsys import nsys_step
from tests.synthetic.rocpd import CPU, GPU, SCHEMA, Rocpd, rocpd_job, rocpd_steps
from tests.traces.crafted import outcome

ALL_REDUCE = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


def read(tmp_path: Path, made: Rocpd) -> Trace:
    return open_trace(made.saved(tmp_path / "9_results.db"))


def changed(path: Path, *statements: str) -> Path:
    """Both ranks' database after some SQL."""
    rocpd_job(path)
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()
    return path


def test_a_recording_reads_as_it_was_made(tmp_path: Path) -> None:
    trace = read(tmp_path, rocpd_steps())
    events, calls, ranges = trace.events, trace.calls, trace.ranges
    gemm = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32"
    assert [trace.names[i] for i in events.name] == ["Memcpy HtoD", *[gemm, ALL_REDUCE] * 4]
    assert events.start_ns[:3].tolist() == [31_000, 103_000, 138_000]
    assert events.end_ns[:3].tolist() == [35_000, 143_000, 158_000]
    assert events.activity.tolist() == [Activity.MEMCPY, *[Activity.KERNEL] * 8]
    assert (events.bytes[0], events.copy_kind[0], events.copy_kind[1]) == (1 << 20, CopyKind.H2D, -1)
    assert events.launch_ns[:3].tolist() == [4_000, 101_000, 102_200]
    assert events.stream[:3].tolist() == [1, 1, 2]
    assert {*events.process.tolist(), *events.launch_thread.tolist(), *calls.thread.tolist()} == {9}
    assert [trace.names[i] for i in calls.name[:3]] == ["hipMemcpyAsync", "hipLaunchKernel", "hipExtLaunchKernel"]
    assert [trace.names[i] for i in ranges.name[:2]] == ["batch_0", "ncclAllReduce"]
    assert ranges.end_ns[:2].tolist() == [190_000, 103_000]
    who = trace.identity
    assert (who.source, who.host, who.pid, who.rank, who.world_size) == ("rocpd", "nid005042", 9, 0, 2)
    assert (who.device_names, who.epoch_ns, trace.notes) == ({0: "AMD Instinct MI250X"}, None, [])


def test_rccls_generic_kernel_is_the_collective_that_was_called(tmp_path: Path) -> None:
    found = read(tmp_path, rocpd_steps())
    rows = found.collectives
    assert {found.names[i] for i in rows.kind} == {"all_reduce"}
    assert {found.names[i] for i in rows.dtype} == {"bfloat16"}
    assert rows.bytes.tolist() == [2097152 * 2] * 4
    assert found.identity.backend == "nccl"


@pytest.mark.parametrize(("name", "arguments", "expected"), [
    ("ncclAllReduce", {"count": "10", "datatype": "ncclFloat32"}, ("all_reduce", "float32", 40)),
    ("ncclAllGather", {"sendcount": "10", "datatype": "7"}, ("all_gather", "float32", -1)),
    ("ncclReduceScatter", {"recvcount": "10", "datatype": "6"}, ("reduce_scatter", "float16", -1)),
    ("ncclBroadcast", {"count": "10", "datatype": "99"}, ("broadcast", None, -1)),
    ("ncclSend", {"count": "x", "datatype": "7"}, ("send", "float32", -1)),
    ("ncclGroupEnd", {}, ("unknown", None, -1)),
])  # fmt: skip
def test_the_message_is_that_of_the_call(
    tmp_path: Path, name: str, arguments: dict[str, str], expected: tuple[str, str | None, int]
) -> None:
    made = Rocpd()
    made.rccl(name, 1_000, 500, **arguments)
    made.kernel(ALL_REDUCE, 5_000, 10, call=made.hip("hipExtLaunchKernel", 1_100, 50))
    trace = read(tmp_path, made)
    (kind,), (dtype,), (size,) = trace.collectives.kind, trace.collectives.dtype, trace.collectives.bytes
    assert (trace.names[kind], None if dtype < 0 else trace.names[dtype], size) == expected


def test_without_rccls_calls_the_report_says_what_to_record(tmp_path: Path) -> None:
    made = Rocpd()
    made.kernel(ALL_REDUCE, 5_000, 10)
    trace = read(tmp_path, made)
    assert [trace.names[i] for i in trace.collectives.kind] == ["unknown"]
    assert trace.notes == [
        "which collective each RCCL kernel carries out was not recorded (record with rocprofv3 --rccl-trace)"
    ]


@pytest.mark.parametrize(("source", "target", "expected"), [
    (CPU, GPU + 1, (CopyKind.H2D, 1)), (GPU + 1, CPU, (CopyKind.D2H, 1)), (GPU, GPU, (CopyKind.D2D, 0)),
    (GPU + 1, GPU, (CopyKind.P2P, 1)), (CPU, CPU, None),
])  # fmt: skip
def test_a_copys_direction_is_that_of_its_agents(
    tmp_path: Path, source: int, target: int, expected: tuple[CopyKind, int] | None
) -> None:
    made = Rocpd()
    made.kernel("k", 1, 1)
    made.copy(5, 10, source=source, target=target)
    events = read(tmp_path, made).events
    copies = events.activity == Activity.MEMCPY
    assert list(zip(events.copy_kind[copies], events.device[copies], strict=True)) == [expected] * bool(expected)


def test_a_range_from_start_to_stop_need_not_nest(tmp_path: Path) -> None:
    made = Rocpd()
    made.range("epoch", 10, 20, operation="roctxProcessRangeA")
    made.range("mark", 11, 0, operation="roctxMarkA")
    made.region("MARKER_CORE_RANGE_API", "roctxThreadRangeA", 12, 5)
    made.region("KFD_EVENT_QUEUE", "evict", 13, 5)
    trace = read(tmp_path, made)
    found = [(trace.names[n], k) for n, k in zip(trace.ranges.name, trace.ranges.kind, strict=True)]
    assert found == [("epoch", RangeKind.START_END), ("roctxThreadRangeA", RangeKind.PUSH_POP)]
    assert len(trace.calls) == 0


def test_hardware_queues_stand_in_for_streams_that_were_not_recorded(tmp_path: Path) -> None:
    made = Rocpd()
    made.kernel("a", 1, 1, stream=0, queue=3)
    made.kernel("b", 2, 1, stream=0, queue=4)
    assert read(tmp_path, made).events.stream.tolist() == [3, 4]


def test_a_kernel_without_a_plain_name_has_its_symbols(tmp_path: Path) -> None:
    made = Rocpd()
    made.kernel("k", 1, 1)
    path = made.saved(tmp_path / "t.db")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE rocpd_info_kernel_symbol_0190 SET display_name=NULL")
    database.close()
    assert open_trace(path).names[0] == "_Zk"


def test_the_environment_gives_the_rank_and_nothing_else(tmp_path: Path) -> None:
    trace = read(tmp_path, rocpd_steps(rank=1))
    assert (trace.identity.rank, trace.identity.ranks) == (1, {9: 1})
    assert "abc" not in repr(trace)
    named = Rocpd(environment={"RANK": "one"}).saved(tmp_path / "rank3_results.db")
    assert open_trace(named).identity.rank == 3


def test_two_ranks_give_the_known_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Marks of 90 µs each 100 µs; 40 computing; 20 communicating, of which 5 beside the product; the window has 4."""
    folder = tmp_path / "nid005042"
    folder.mkdir()
    rocpd_steps().saved(folder / "9_results.db")
    rocpd_steps(pid=10, guid="0191", rank=1, agent=GPU + 1).saved(folder / "10_results.db")
    merged = rocpd_job(tmp_path / "merged.db")
    for path in (folder, merged):
        assert main(["report", str(path), "--json", "--no-html"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert [d["rank"] for d in summary["devices"]] == [0, 1]
        for device in summary["devices"]:
            assert (device["window_ns"], device["compute_ns"]) == (390_000, 160_000)
            assert (device["communication_ns"], device["exposed_communication_ns"]) == (80_000, 60_000)
        assert summary["steps"]["duration"]["median_ns"] == 100_000
        (collective,) = summary["collectives"]
        assert (collective["kind"], collective["bytes"], collective["count"]) == ("all_reduce", 4 * 4 << 20, 4)
        assert summary["quality"]["verdict"] == "good"


def test_a_folder_gives_its_databases_and_no_others(tmp_path: Path) -> None:
    ours = rocpd_steps().saved(tmp_path / "9_results.db")
    nsys_step().saved(tmp_path / "other.db")
    (tmp_path / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    assert find_traces([tmp_path]) == [ours]


@pytest.mark.parametrize("table", [t for t in SCHEMA if t != "metadata"])
def test_every_table_is_optional(tmp_path: Path, table: str) -> None:
    trace = open_trace(changed(tmp_path / "t.db", f"DROP TABLE rocpd_{table}_0190"))
    kernels = trace.events.activity == Activity.KERNEL
    ours = (trace.events.process == 9) & kernels
    assert (int(ours.sum()), int(kernels.sum())) == ((0, 8) if table == "kernel_dispatch" else (8, 16))


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, marks=pytest.mark.long if table in ("info_agent", "info_process", "info_thread") else ())
        for table in SCHEMA
        if table != "metadata"  # info_node stands for the small tables by default
    ],
)
def test_a_view_without_end_in_a_tables_place_is_one_sentence(tmp_path: Path, table: str) -> None:
    name = f"rocpd_{table}_0190"
    endless = "WITH RECURSIVE c(start) AS (SELECT 1 UNION ALL SELECT start+1 FROM c) SELECT * FROM c"
    path = changed(tmp_path / "t.db", f"ALTER TABLE {name} RENAME TO other", f"CREATE VIEW {name} AS {endless}")
    assert "Traceback" not in outcome(path)


@pytest.mark.parametrize(("table", "values", "says"), [
    ("kernel_dispatch", '"end"=start-1', "ended before they started"),
    ("kernel_dispatch", f"start={-(1 << 63)}", "are over 104 days from others"),
    ("kernel_dispatch", "agent_id=1000000000000", "whose number no machine has"),
    ("memory_copy", f"size={(1 << 63) - 1}", "1 copies are larger than any memory"),
    ("region", f'"end"={(1 << 63) - 1}', "are over 104 days from others"),
])  # fmt: skip
def test_a_row_that_cannot_be_true_is_left_out_and_said(tmp_path: Path, table: str, values: str, says: str) -> None:
    path = changed(tmp_path / "t.db", f"UPDATE rocpd_{table}_0190 SET {values} WHERE rowid=1")
    assert says in outcome(path) and "left out" in outcome(path)


@pytest.mark.parametrize("value", ["'text'", "'{'", "1.5", "x'00'", "'[1]'", f"'{'[' * 3000}'"])
@pytest.mark.parametrize(("table", "column"), [
    ("info_process", "environment"), ("info_process", "pid"), ("info_thread", "tid"), ("info_agent", "type_index"),
    ("info_node", "hostname"), ("event", "extdata"), ("arg", "value"), ("string", "string"), ("metadata", "value"),
])  # fmt: skip
def test_odd_values_in_the_small_tables_do_no_harm(tmp_path: Path, table: str, column: str, value: str) -> None:
    path = changed(tmp_path / "t.db", f"UPDATE rocpd_{table}_0190 SET {column}={value} WHERE rowid=1")
    assert len(open_trace(path).events) == 18


REFUSED = {
    "of another schema: no column agent_id": (
        ["ALTER TABLE rocpd_kernel_dispatch_0190 RENAME COLUMN agent_id TO track_id"],
        "has a schema that is not known: rocpd_kernel_dispatch_0190 has no column agent_id "
        "(read are rocpd's versions 3.0.0 to 3.0.5)",
    ),
    "of several machines": (
        ["UPDATE rocpd_info_node_0191 SET machine_id='m2'"],
        "holds recordings of several machines, whose clocks do not agree: give each machine's own databases",
    ),
    "with a text for a time": (
        ["UPDATE rocpd_kernel_dispatch_0190 SET start='text' WHERE rowid=1"],
        "cannot be read as a database of rocprofv3 (invalid literal for int() with base 10: 'text')",
    ),
    "without its list": (
        ["DROP TABLE rocpd_metadata_0190", "DROP TABLE rocpd_metadata_0191"],
        "is an SQLite database, but not one of rocprofv3: it has no rocpd_metadata table",
    ),
    "of too many": (
        [f"CREATE TABLE rocpd_metadata_x{i} (tag TEXT)" for i in range(255)],
        "is damaged: it holds more than 256 recordings",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_database_that_is_not_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    statements, said = REFUSED[name]
    assert outcome(changed(tmp_path / "t.db", *statements)) == said


def test_a_file_that_is_no_database_or_cut_is_one_sentence(tmp_path: Path) -> None:
    path = rocpd_job(tmp_path / "t.db")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"is cut off: .* copy or record it again"):
        open_trace(path)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(TraceError, match="cannot be read as a database of rocprofv3 \\(file is not a database\\)"):
        open_trace(path)
