"""The verdict names what is wrong, on which node, and never calls fine what was not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commtests.tools import TESTS, node_text, run_tests
from commtests.verdict import judge_node, judge_nodes, verdict_line

from harness.site.site import load_site
from tests.exercise_0.conftest import EXERCISE
from tests.waiting import limit_s

FIXTURES = Path(__file__).parent / "fixtures"
SCRIPT = EXERCISE / "comm_tests.py"


def record(tmp_path: Path, node: int = 0, **files: Any) -> dict[str, Any]:
    """A node on which each test's tool prints the fixture named for its key; others fail or are missing."""
    fake = tmp_path / f"bin{node}"
    fake.mkdir(parents=True)
    by_argument = {"r": "p2p_read", "w": "p2p_write", "n": "p2p_nvlink", "-m": "topology"}
    cases = "".join(
        f'  {argument}) exec cat "{FIXTURES / files[key]}";;\n' for argument, key in by_argument.items() if key in files
    )
    smi = fake / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nfor last; do :; done\ncase "$last" in\n{cases}*) echo no such thing; exit 3;;\nesac\n')
    ibstat = fake / "ibstat"
    ibstat.write_text(f'#!/bin/sh\nexec cat "{FIXTURES / files.get("infiniband", "missing")}"\n')
    for tool in (smi, ibstat):
        tool.chmod(0o755)
    tools = {"nvidia-smi": str(smi)} | ({"ibstat": str(ibstat)} if "infiniband" in files else {})
    tests: dict[str, Any] = run_tests(node, tools.get)
    return tests


LEONARDO: dict[str, Any] = {
    "p2p_read": "leonardo_p2p.txt",
    "p2p_write": "leonardo_p2p.txt",
    "p2p_nvlink": "leonardo_p2p.txt",
    "topology": "leonardo_topo.txt",
    "infiniband": "leonardo_ibstat.txt",
}
PCIE: dict[str, Any] = {
    "p2p_read": "pcie_p2p_some_cns.txt",
    "p2p_write": "pcie_p2p_some_cns.txt",
    "p2p_nvlink": "pcie_p2p_nvlink_ns.txt",
    "topology": "pcie_sys_topo.txt",
    "infiniband": "broken_ibstat.txt",
}


def test_the_slides_healthy_leonardo_has_no_finding_by_its_site_file(tmp_path: Path) -> None:
    nodes = [record(tmp_path, number, **LEONARDO) for number in (0, 1)]
    assert [test["available"] for test in nodes[0]["tests"].values()] == [True] * 5
    expected = load_site("leonardo").network.expected_gbps
    assert judge_nodes(nodes, nodes=2, expected_rate_gbps=expected) == []
    assert len(judge_nodes(nodes, nodes=2, expected_rate_gbps=200)) == 8


def test_a_healthy_node_is_told_by_what_was_tested(tmp_path: Path) -> None:
    node = record(tmp_path, **LEONARDO)
    assert verdict_line([], [node]).startswith(
        "VERDICT: No problem on 1 node: infiniband, p2p_nvlink, p2p_read, p2p_write, topology. No collective"
    )


def test_every_fault_of_a_bad_node_is_named(tmp_path: Path) -> None:
    findings = judge_node(record(tmp_path, **PCIE), expected_rate_gbps=200)
    said = "\n".join(finding.message for finding in findings)
    assert "P2P read: 8 of 12 are not OK: GPU0→GPU2 CNS" in said
    assert "NVLink P2P: no GPU pair is OK, all are NS (not supported)" in said
    assert "4 of 6 GPU pairs communicate over the socket link (SYS): GPU0–GPU2" in said
    assert "mlx5_1 port 1 (InfiniBand) is Down (physical state Polling)" in said
    assert "mlx5_2 port 1 runs at 100 Gb/s, 200 expected" in said
    assert "mlx5_3 port 1 (InfiniBand) is Initializing" in said
    assert "mlx5_0" not in said
    assert all(finding.level == "problem" for finding in findings)


def test_the_rate_is_judged_only_where_one_is_expected(tmp_path: Path) -> None:
    node = record(tmp_path, **PCIE)
    assert not any("runs at" in finding.message for finding in judge_node(node))


def test_an_ethernet_port_that_is_down_is_a_note_and_its_rate_no_problem(tmp_path: Path) -> None:
    node = record(tmp_path, **{**LEONARDO, "topology": "h100_topo.txt", "infiniband": "h100_ibstat.txt"})
    findings = judge_node(node, expected_rate_gbps=200)
    assert [(finding.level, "mlx5_3" in finding.message) for finding in findings] == [("note", True)]


def test_nodes_that_differ_are_named_with_what_each_has(tmp_path: Path) -> None:
    nodes = [record(tmp_path, k, **LEONARDO) for k in (0, 1)] + [record(tmp_path, 2, **PCIE)]
    said = "\n".join(f.message for f in judge_nodes(nodes) if f.test == "nodes")
    assert "nodes differ in GPU links: 6× NV4 on nodes 0, 1; 2× PHB, 4× SYS on node 2" in said
    assert "nodes differ in number of network cards: 4 on nodes 0, 1; 0 on node 2" in said
    assert "number of GPUs" not in said
    assert judge_nodes(nodes[:2]) == []


def test_a_node_without_a_result_is_a_problem(tmp_path: Path) -> None:
    findings = judge_nodes([record(tmp_path, **LEONARDO)], nodes=2)
    assert [finding.message for finding in findings] == ["node 1 wrote no result"]


def test_missing_tools_are_said_and_the_verdict_claims_nothing_about_them(tmp_path: Path) -> None:
    node = run_tests(0, which=lambda _: None)
    text = node_text(node)
    assert text.count("not available here: nvidia-smi is not installed on this node") == 4
    assert "not available here: ibstat is not installed" in text
    assert all(test.title in text for test in TESTS)
    assert judge_node(node) == []
    assert "should be" not in verdict_line([], [node])
    some = record(tmp_path, infiniband="leonardo_ibstat.txt")
    line = verdict_line(judge_node(some), [some, {**node, "node": 1}])
    assert "VERDICT: No problem on 2 nodes: infiniband (tested on 1). No collective" in line
    assert line.replace(f"{tmp_path / 'bin0'}/", "").endswith(
        "Not tested: p2p_read, p2p_write, p2p_nvlink, topology on node 0 (nvidia-smi ended with 3: no such thing); "
        "p2p_read, p2p_write, p2p_nvlink, topology on node 1 (nvidia-smi is not installed on this node); "
        "infiniband on node 1 (ibstat is not installed on this node)."
    )


def measured(device: str = "cpu", correct: bool = True, **link_gbps: float) -> dict[str, Any]:
    """collectives.json of two collectives in one scope."""
    results = [
        {"collective": name, "scope": "intra", "points": [{"correct": correct or name != "broadcast"}]}
        for name in ("all_reduce", "broadcast")
    ]
    about = {"backend": "gloo", "device": device, "device_name": "CPU (x86_64)", "world_size": 2}
    return {**about, "link_gbps": {"intra": None, "inter": None, **link_gbps}, "results": results}


def test_the_verdict_says_what_was_measured_and_why_its_speed_cannot_be_judged() -> None:
    node = run_tests(0, which=lambda _: None)
    line = verdict_line(judge_nodes([node], 1, None, measured()), [node], measured())
    assert line.startswith(
        "VERDICT: 2 collectives were measured between 2 ranks (gloo, CPU (x86_64)), all results right. The "
        "speed cannot be judged: between processes on CPUs there is no link with a known rate. Not tested: p2p_read"
    )
    assert line.count("is not installed") == 2  # once a tool
    assert "site file" in verdict_line([], [node], measured("cuda"))
    assert "cannot be judged" not in verdict_line([], [node], measured("cuda", intra=2400.0))


def test_wrong_numbers_of_a_collective_are_a_problem_of_the_verdict() -> None:
    node, found = run_tests(0, which=lambda _: None), measured(correct=False)
    (problem,) = judge_nodes([node], 1, None, found)
    assert (problem.level, problem.message) == ("problem", "broadcast (intra) gave wrong numbers")
    assert verdict_line([problem], [node], found).startswith("VERDICT: 1 problem on 1 node. 2 collectives were")
    assert "with wrong results" in verdict_line([problem], [node], found)


def test_the_message_of_a_tool_that_fails_is_shown(tmp_path: Path) -> None:
    node = record(tmp_path, p2p_read="no_driver.txt")
    assert "begins: NVIDIA-SMI has failed" in node["tests"]["p2p_read"]["reason"]
    assert node["tests"]["topology"]["reason"].endswith("ended with 3: no such thing")


def test_from_the_command_line_each_node_then_the_verdict(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # -S: no site-packages. A node's own Python, with nothing installed, must do.
        argv = [sys.executable, "-S", str(SCRIPT), *arguments, "--run-dir", str(tmp_path)]
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)}, timeout=limit_s()
        )

    assert run("verdict").returncode == 2
    for node in ("0", "1"):
        assert run("topology", "--node", node).returncode == 0
    done = run("verdict", "--nodes", "2", "--strict")
    assert done.returncode == 0 and "VERDICT: No collective was measured" in done.stdout
    assert done.stdout.count("is not installed") == 2 and max(map(len, done.stdout.splitlines())) <= 78
    (tmp_path / "comm/collectives.json").write_text(json.dumps(measured()))
    done = run("verdict", "--nodes", "2")
    assert "VERDICT: 2 collectives were measured between 2 ranks" in done.stdout
    assert run("verdict", "--nodes", "3", "--strict").returncode == 1
    assert json.loads((tmp_path / "comm/node1.json").read_text())["node"] == 1
    assert (
        json.loads((tmp_path / "comm/verdict.json").read_text())["findings"][-1]["message"] == "node 2 wrote no result"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["collectives"], "must be started by torchrun"),
        (["collectives", "--max-bytes", "lots"], "'lots' is not a size such as 1K"),
        (["collectives", "--collectives", "all_reduce,gather"], "'gather' is not one of all_reduce"),
        (["topology"], "--node"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    argv = [sys.executable, str(SCRIPT), *arguments, "--run-dir", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={}, timeout=limit_s())
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("topology", "--node", "0"), ("collectives",)])
def test_a_folder_that_cannot_be_made_is_a_wrong_request(tmp_path: Path, command: tuple[str, ...]) -> None:
    """The error comes before a measurement, without a traceback."""
    (tmp_path / "file").write_text("")
    argv = [sys.executable, str(SCRIPT), *command, "--run-dir", str(tmp_path / "file" / "run")]
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=torchrun, timeout=limit_s())
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"--run-dir: {tmp_path / 'file' / 'run' / 'comm'} cannot be made (Not a directory)\n"
