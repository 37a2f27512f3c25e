"""Databases of rocprofv3 made by us (none was recorded on a GPU): their content, and what a report says of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from operator import methodcaller as row
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cli.main import main
from harness.traces import find_traces, open_trace
from harness.traces.trace import Activity, CopyKind, RangeKind
from tests.synthetic.nsys import nsys_step
from tests.synthetic.rocpd import CPU, GPU, SCHEMA, Rocpd, rocpd_job, rocpd_steps
from tests.traces.told import differing, told

GEMM = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32"
ALL_REDUCE = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
NO_CALLS = "which collective each RCCL kernel carries out was not recorded (record with rocprofv3 --rccl-trace)"


class Scene(NamedTuple):
    """Rows of a database, and what the trace is to say of them. begins: what is there before them."""

    rows: Sequence[Callable[[Rocpd], object]]
    told: dict[str, Any]
    begins: Callable[[], Rocpd] = Rocpd


def called(name: str, **arguments: str) -> Sequence[Callable[[Rocpd], object]]:
    """A call of RCCL, and the kernel that a call within it launches."""
    launch = row("hip", "hipExtLaunchKernel", 1_100, 50)
    return row("rccl", name, 1_000, 500, **arguments), launch, row("kernel", ALL_REDUCE, 5_000, 10, call=2)


MESSAGES = {
    ("ncclAllReduce", "count", "10", "ncclFloat32"): ("all_reduce", 40, "float32"),
    ("ncclAllGather", "sendcount", "10", "7"): ("all_gather", -1, "float32"),
    ("ncclReduceScatter", "recvcount", "10", "6"): ("reduce_scatter", -1, "float16"),
    ("ncclBroadcast", "count", "10", "99"): ("broadcast", -1, None),
    ("ncclSend", "count", "x", "7"): ("send", -1, "float32"),
}
COPIES = [
    (CPU, GPU + 1, (CopyKind.H2D, 1)), (GPU + 1, CPU, (CopyKind.D2H, 1)), (GPU, GPU, (CopyKind.D2D, 0)),
    (GPU + 1, GPU, (CopyKind.P2P, 1)),
]  # fmt: skip
SCENES = {
    "a recording": Scene((), {
        "events": ["Memcpy HtoD", *[GEMM, ALL_REDUCE] * 4],
        "activity": [Activity.MEMCPY, *[Activity.KERNEL] * 8],
        "start": [31_000, *(t + at for t in range(100_000, 500_000, 100_000) for at in (3_000, 38_000))],
        "length": [4_000, *[40_000, 20_000] * 4], "bytes": [1 << 20, *[-1] * 8],
        "launch": [4_000, *(t + at for t in range(100_000, 500_000, 100_000) for at in (1_000, 2_200))],
        "stream": [1, *[1, 2] * 4], "process": [9] * 9, "launched on": [9] * 9,
        "calls": ["hipMemcpyAsync", *["hipLaunchKernel", "hipExtLaunchKernel"] * 4],
        "ranges": [name for step in range(4) for name in (f"batch_{step}", "ncclAllReduce")],
        "collectives": [("all_reduce", 2097152 * 2, "bfloat16", None, -1)] * 4, "notes": [],
        "who": ("rocpd", 0, 2, "nid005042", 9, "nccl"), "clock": ("trace", None),
        "device names": {0: "AMD Instinct MI250X"}, "world": (2, {9: 0}),
    }, rocpd_steps),
    **{
        f"the message is that of {name}": Scene(
            called(name, **{argument: count, "datatype": datatype}), {"collectives": [(*message, None, -1)]}
        )
        for (name, argument, count, datatype), message in MESSAGES.items()
    },
    "the message of no call is not known": Scene(
        called("ncclGroupEnd"), {"collectives": [("unknown", -1, None, None, -1)]}
    ),
    "without RCCL's calls the trace says what to record": Scene(
        [row("kernel", ALL_REDUCE, 5_000, 10)], {"messages": [("unknown", -1)], "notes": [NO_CALLS]}
    ),
    "a range from start to stop need not nest": Scene(
        [row("range", "epoch", 10, 20, operation="roctxProcessRangeA"),
         row("range", "mark", 11, 0, operation="roctxMarkA"),
         row("region", "MARKER_CORE_RANGE_API", "roctxThreadRangeA", 12, 5),
         row("region", "KFD_EVENT_QUEUE", "evict", 13, 5)],
        {"ranges": ["epoch", "roctxThreadRangeA"], "range kinds": [RangeKind.START_END, RangeKind.PUSH_POP],
         "calls": []},
    ),
    "hardware queues stand in for streams that were not recorded": Scene(
        [row("kernel", "a", 1, 1, stream=0, queue=3), row("kernel", "b", 2, 1, stream=0, queue=4)], {"stream": [3, 4]}
    ),
    **{
        f"a copy from {source} to {target}": Scene(
            [row("copy", 5, 10, source=source, target=target)], {"copies": [(kind, 0)], "device": [device]}
        )
        for source, target, (kind, device) in COPIES
    },
    "a copy within the host is no device's work": Scene([row("copy", 5, 10, source=CPU, target=CPU)], {"events": []}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_rows_of_a_database_become(tmp_path: Path, name: str) -> None:
    made = SCENES[name].begins()
    for add in SCENES[name].rows:
        add(made)
    trace = open_trace(made.saved(tmp_path / "9_results.db"))
    assert differing(trace, SCENES[name].told) == {}
    assert "abc" not in repr(trace), "a secret of the environment"


@pytest.mark.parametrize("table", [table for table in SCHEMA if table != "metadata"])
def test_every_table_is_optional(tmp_path: Path, table: str) -> None:
    path = rocpd_job(tmp_path / "t.db")
    with sqlite3.connect(path) as database:
        database.execute(f"DROP TABLE rocpd_{table}_0190")
    database.close()
    found = told(open_trace(path))
    kernels = [pid for pid, kind in zip(found["process"], found["activity"], strict=True) if kind == Activity.KERNEL]
    assert (kernels.count(9), kernels.count(10)) == ((0, 8) if table == "kernel_dispatch" else (8, 8))


def test_a_kernel_without_a_plain_name_has_its_symbols(tmp_path: Path) -> None:
    path = rocpd_job(tmp_path / "t.db")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE rocpd_info_kernel_symbol_0190 SET display_name=NULL")
    database.close()
    assert f"_Z{GEMM}" in told(open_trace(path))["events"]


def test_a_rank_that_the_environment_does_not_say_is_the_files(tmp_path: Path) -> None:
    assert open_trace(Rocpd(environment={"RANK": "one"}).saved(tmp_path / "rank3_results.db")).identity.rank == 3


def test_two_ranks_give_the_known_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Marks of 90 µs each 100 µs; 40 computing; 20 communicating, of which 5 beside the product; the window has 4."""
    folder = tmp_path / "nid005042"
    folder.mkdir()
    rocpd_steps().saved(folder / "9_results.db")
    rocpd_steps(pid=10, guid="0191", rank=1, agent=GPU + 1).saved(folder / "10_results.db")
    for path in (folder, rocpd_job(tmp_path / "merged.db")):
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
