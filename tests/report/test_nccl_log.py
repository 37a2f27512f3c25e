"""NCCL's log becomes data: what a job's messages go over, told in tables.

tests/data/nccl holds made-up runs in NCCL's own words: two nodes over InfiniBand (2.21) and over sockets (2.26), a node
whose GPUs cannot reach each other (2.18), and RoCE by a plugin (2.27).
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copytree

import pytest

from harness.analysis.summary import Nccl, RecordingVerdict, Summary
from harness.cli.main import main
from harness.common.display.printable import printable
from harness.explain.nccl_transport import between_nodes, inside_a_node
from harness.measure.nccl_log import MOST_DIFFERENT, LoggedProcess, read_nccl_logs
from harness.report.tables.catalogue import write_tables
from tests.launch.launch_shared import a_run

DATA = Path(__file__).parents[1] / "data" / "nccl"
HEAD = "node1:4100:4160 [0] NCCL INFO "


def logs(name: str) -> Nccl:
    nccl, findings = read_nccl_logs(sorted((DATA / name).glob("*.log")))
    assert findings == [] and nccl is not None
    return nccl


def read(*lines: str) -> LoggedProcess:
    process = LoggedProcess()
    for line in lines:
        process.read(line)
    return process


LOGS: dict[str, dict[str, object]] = {
    "infiniband": {
        "versions": ["2.21.5+cuda12.4"], "processes": 4, "warnings": [],
        "between": "InfiniBand (NET/IB) with GPUDirect RDMA",
        "inside": "from GPU to GPU (P2P/CUMEM)", "networks": [("IB", 4, ["mlx5_0 (IB)", "mlx5_1 (IB)"])],
        "connections": [(4, "NET/IB", True, True, 4), (4, "P2P/CUMEM", False, None, 4)],
        "variables": {"NCCL_SOCKET_IFNAME": ["ib0"]},
    },
    "sockets": {
        "between": "sockets (NET/Socket), not InfiniBand: NCCL_IB_DISABLE is set", "networks": [("Socket", 4, ["ib0"])],
        "warnings": [("socketProgress: Connection closed by remote peer node1<42830>", "node2", 1)],
    },
    "host-memory": {
        "between": None, "inside": "through host memory (SHM/direct): NCCL_P2P_LEVEL is set",
        "connections": [(2, "SHM/direct", False, None, 4)], "networks": [("Socket", 2, ["bond0.526", "eth0"])],
    },
    "plugin": {
        "between": "RoCE (NET/IBext_v8) without GPUDirect RDMA, although NCCL_IB_DISABLE is set",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_a_log_tells_the_transport_of_each_group_and_why(name: str) -> None:
    n = logs(name)
    shown = {
        "versions": n.versions,
        "processes": n.processes,
        "between": between_nodes(n),
        "inside": inside_a_node(n),
        "connections": [(c.communicator_size, c.transport, c.between_nodes, c.gdrdma, c.count) for c in n.connections],
        "networks": [(network.name, network.processes, network.network_devices) for network in n.networks],
        "variables": {v.name: v.values for v in n.variables},
        "warnings": [(w.text, w.host, w.count) for w in n.warnings],
    }
    assert {what: shown[what] for what in LOGS[name]} == LOGS[name]
    assert "10.9" not in n.model_dump_json(), "no address"
    assert 1 not in {c.communicator_size for c in n.connections}, "a group of one rank sends nothing"


def test_a_reason_is_given_only_where_the_log_has_one() -> None:
    silent = logs("sockets").model_copy(update={"variables": []})
    assert between_nodes(silent) == "sockets (NET/Socket), not InfiniBand"
    none_found = silent.model_copy(update={"without_infiniband": True})
    assert between_nodes(none_found) == f"{between_nodes(silent)}: NCCL found no InfiniBand device"
    n, _ = read_nccl_logs([DATA / "infiniband" / "node1.4100.log"])  # the other log is lost
    assert n is not None and {c.between_nodes for c in n.connections} == {None}
    assert between_nodes(n) is inside_a_node(n) is None


RCCL_HEAD = "nid1:50:70 [0] NCCL INFO "
RCCL_MADE = "comm 0xa rank 0 nranks 8 cudaDev 0 busId c1000 commId 0x7 localSize 4 used 43 bytes - Init COMPLETE"


def rccl(*lines: str) -> LoggedProcess:
    """The log of a process of eight, of a group of four at 0xb of which it makes the end later."""
    small = RCCL_MADE.replace("0xa", "0xb").replace("nranks 8", "nranks 4").replace("0x7", "0x8")
    return read(*(RCCL_HEAD + line for line in (RCCL_MADE, small, *lines)))


@pytest.mark.parametrize(
    ("path", "transport", "gdrdma"),
    [
        ("P2P/IPC", "P2P/IPC", None),
        ("P2P/direct pointer", "P2P/direct pointer", None),
        ("P2P/IPC/read", "P2P/IPC", None),
        ("SHM/direct/direct", "SHM/direct", None),
        ("NET/Socket/2", "NET/Socket", False),
        ("NET/IB/0/GDRDMA", "NET/IB", True),
        ("NET/IB/3(1)/GDRDMA/Shared", "NET/IB", True),
        ("NET/AWS Libfabric/2/GDRDMA", "NET/AWS Libfabric", True),
    ],
)
def test_rccls_connections_name_their_group_and_no_pointer_becomes_a_transport(
    path: str, transport: str, gdrdma: bool | None
) -> None:
    line = f"Channel 00/0 : 0[c1000] -> 1[c6000] via {path}"
    for end in (" comm 0xa nRanks 08", " comm 0xa nRanks 08 busId c1000", " comm 0xa nRa"):
        assert list(rccl(line + end).links) == [("commId 0x7 of 8", 8, 1, transport, gdrdma)]
    assert [link[1] for link in rccl(line + " comm 0xb nRanks 04").links] == [4]
    assert [link[1:] for link in rccl(line).links] == [(4, 1, transport, gdrdma)], "NCCL's, of the group made last"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("RCCL version 2.18.3+hip6.0 HEAD:2f6d59e+", "2.18.3+hip6.0"),
        ("RCCL version : 2.22.3-HEAD:7d8d67c+", "2.22.3"),
        ("RCCL version : 2.26.6-heads/drop/2025-08:c3b8de4", "2.26.6"),
        (RCCL_HEAD + "RCCL version : 2.27.7-develop:29e1567", "2.27.7"),
        ("NCCL version 2.21.5-1+cuda12.4", "2.21.5-1+cuda12.4"),
    ],
)
def test_rccls_version_is_read_without_its_branch(line: str, version: str) -> None:
    assert read(RCCL_HEAD + "RCCL_MSCCL_ENABLE set by environment to 0.").variables == {"RCCL_MSCCL_ENABLE": "0"}
    others = ["HIP version  : 7.2.26015-fc0010cf6a", "Librccl path : /opt/rocm-7.2.0/lib/librccl.so.1"]
    assert read(line, *others).versions == {version}


def test_a_time_before_a_line_and_a_later_connection_are_understood() -> None:
    """From 2.22 on NCCL connects when a group first sends, on another thread than that which made it."""
    start = "ncclCommInitRank comm 0xa rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 3000 commId 0xb - Init START"
    late = "[2025-06-02 10:11:12] node1:4100:9999 [1] NCCL INFO Channel 03/1 : 1[1] -> 0[0] via P2P/IPC"
    process = read(HEAD + start, late)
    assert [link[1:4] for link in process.links] == [(2, 0, "P2P/IPC")]
    other = read(HEAD + start, late.replace("0[0]", "7[0]"), late.replace("1[1]", "3[1]"))
    assert {size for _, size, *_ in other.links} == {None}, "no group of two has such ranks"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Traceback (most recent call last):",
        HEAD,
        HEAD + "Channel 00/0 : 0[0] -> ",
        HEAD + "Channel 00/02 :    0   1   2",
        HEAD + "Trees [0] 1/-1/-1->0->-1",
        HEAD + "comm 0xa rank 99999999999999999999 nranks 1 cudaDev 0 busId 1 - Init START",
        HEAD + "AllReduce: 99999999999999999999 Bytes -> Algo 1 proto 2",
        "x" * 300 + ":1:2 [0] NCCL INFO Using network IB",
        "a:1:2 [0] " * 5000,
        HEAD + "Channel 00/02 :" + " " * 100_000,
    ],
)
def test_other_lines_and_odd_ones_are_skipped(line: str) -> None:
    process = read(line)
    assert not process.communicators and not process.links


def test_a_log_without_end_and_a_hostile_one_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{HEAD}NCCL_X{n} set by environment to \x1b[2J{'v' * 5000}" for n in range(MOST_DIFFERENT + 50)]
    lines += [f"h:1:{n} [0] f.cc:1 NCCL WARN {n} \u202e" for n in range(MOST_DIFFERENT + 50)]
    (tmp_path / "a.1.log").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "b.2.log").write_bytes(os.urandom(100_000) + b"\n" + b"\0" * 100_000)
    n, findings = read_nccl_logs(sorted(tmp_path.glob("*.log")))
    assert findings == [] and n is not None and n.processes == 1
    assert len(n.variables) == len(n.warnings) == 100
    text = n.model_dump_json()
    assert len(text) < 100_000 and printable(text) == text
    assert Summary.model_validate_json(Summary(nccl=n).model_dump_json()).nccl == n
    monkeypatch.setattr("harness.measure.nccl_log.MOST_LINES", 10)
    n, _ = read_nccl_logs([DATA / "infiniband" / "node1.4100.log"])
    assert n is not None and n.versions and not n.connections, "of a log that never ends the beginning is read"


def test_what_is_no_file_is_named_and_the_other_logs_stand(tmp_path: Path) -> None:
    copytree(DATA / "infiniband", tmp_path / "nccl")
    (tmp_path / "nccl" / "a.1.log").mkdir()
    os.mkfifo(tmp_path / "nccl" / "b.1.log")
    n, findings = read_nccl_logs(sorted((tmp_path / "nccl").glob("*.log")))
    assert n == logs("infiniband")
    assert [(f.severity, f.what) for f in findings] == [(RecordingVerdict.DOUBTFUL, "a log of NCCL cannot be read")] * 2
    assert [f.evidence for f in findings] == [
        "nccl/a.1.log: is a folder, not a file",
        "nccl/b.1.log: is a pipe, not a file",
    ]


def test_a_run_with_a_log_tells_it_in_terminal_page_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # a narrower terminal shortens what does not fit
    run = a_run(tmp_path, "local-1")
    copytree(DATA / "sockets", run.path / "nccl")
    assert main(["report", str(run.path), "--full"]) == 0
    said = capsys.readouterr().out
    assert "between nodes       sockets (NET/Socket), not InfiniBand: NCCL_IB_DISABLE is set\n" in said
    assert "sockets (NET/Socket), not InfiniBand: NCCL_IB_DISABLE is set" in run.page.read_text(encoding="utf-8")
    stored = Summary.model_validate_json(run.summary.read_text(encoding="utf-8"))
    assert stored.nccl == logs("sockets")
    write_tables([stored], tmp_path / "csv")
    assert "P2P/CUMEM" in (tmp_path / "csv" / "nccl_connections.csv").read_text()


def test_exercise_0_tells_it_below_its_own_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run = a_run(tmp_path, "local-1")
    (run.path / "comm").mkdir()
    assert main(["report", str(run.path), "--full"]) == 0
    assert "NCCL" not in capsys.readouterr().out
    copytree(DATA / "plugin", run.path / "nccl")
    assert main(["report", str(run.path)]) == 0
    assert "RoCE (NET/IBext_v8) without GPUDirect RDMA, although NCCL_IB_DISABLE is set" in capsys.readouterr().out
