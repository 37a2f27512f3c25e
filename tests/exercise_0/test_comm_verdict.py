"""The verdict names what is wrong, on which node, and never calls fine what was not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commtests.tools import TESTS, node_text, run_tests
from commtests.verdict import judge_node, judge_nodes, verdict_line

from harness.site.site import load_site
from tests.exercise_0.kit import ALONE, FIXTURES, run_script

Record = dict[str, Any]


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Record]:
    """Makes the record of a node on which each test's tool prints the fixture named for its key; others fail or are
    missing."""
    return partial(_record, tmp_path)


def _record(tmp_path: Path, node: int = 0, **files: Any) -> Record:
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
    tests: Record = run_tests(node, tools.get)
    return tests


LEONARDO: Record = {
    **dict.fromkeys(("p2p_read", "p2p_write", "p2p_nvlink"), "leonardo_p2p.txt"),
    "topology": "leonardo_topo.txt",
    "infiniband": "leonardo_ibstat.txt",
}
PCIE: Record = {
    **dict.fromkeys(("p2p_read", "p2p_write"), "pcie_p2p_some_cns.txt"),
    "p2p_nvlink": "pcie_p2p_nvlink_ns.txt",
    "topology": "pcie_sys_topo.txt",
    "infiniband": "broken_ibstat.txt",
}
ETHERNET = {**LEONARDO, "topology": "h100_topo.txt", "infiniband": "h100_ibstat.txt"}
NOTHING = run_tests(0, which=lambda _: None)


def test_the_slides_healthy_leonardo_has_no_finding_by_its_site_file(record: Callable[..., Record]) -> None:
    nodes = [record(number, **LEONARDO) for number in (0, 1)]
    assert [test["available"] for test in nodes[0]["tests"].values()] == [True] * 5
    assert judge_nodes(nodes, nodes=2, expected_rate_gbps=load_site("leonardo").network.expected_gbps) == []
    assert len(judge_nodes(nodes, nodes=2, expected_rate_gbps=200)) == 8
    assert [finding.message for finding in judge_nodes(nodes[:1], nodes=2)] == ["node 1 wrote no result"]
    assert verdict_line([], nodes[:1]).startswith(
        "VERDICT: No problem on 1 node: infiniband, p2p_nvlink, p2p_read, p2p_write, topology. No collective"
    )


def test_every_fault_of_a_bad_node_is_named(record: Callable[..., Record]) -> None:
    node = record(**PCIE)
    findings = judge_node(node, expected_rate_gbps=200)
    said = "\n".join(finding.message for finding in findings)
    assert not [words for words in (
        "P2P read: 8 of 12 GPU pairs are not OK: GPU0→GPU2 CNS",
        "NVLink P2P: 12 of 12 GPU pairs are not OK: GPU0→GPU1 NS",
        "4 of 6 GPU pairs communicate over the socket link (SYS): GPU0–GPU2",
        "mlx5_1 port 1 (InfiniBand) is Down (physical state Polling)",
        "mlx5_2 port 1 runs at 100 Gb/s, 200 expected",
        "mlx5_3 port 1 (InfiniBand) is Initializing",
    ) if words not in said], said  # fmt: skip
    assert "mlx5_0" not in said and all(finding.level == "problem" for finding in findings)
    assert not any("runs at" in finding.message for finding in judge_node(node)), "no rate is expected"


def test_an_ethernet_port_that_is_down_is_a_note_and_its_rate_no_problem(record: Callable[..., Record]) -> None:
    findings = judge_node(record(**ETHERNET), expected_rate_gbps=200)
    assert [(finding.level, "mlx5_3" in finding.message) for finding in findings] == [("note", True)]


def test_nodes_that_differ_are_named_with_what_each_has(record: Callable[..., Record]) -> None:
    nodes = [*(record(k, **LEONARDO) for k in (0, 1)), record(2, **PCIE)]
    said = "\n".join(f.message for f in judge_nodes(nodes) if f.test == "nodes")
    assert "nodes differ in GPU links: 6× NV4 on nodes 0, 1; 2× PHB, 4× SYS on node 2" in said
    assert "nodes differ in number of network cards: 4 on nodes 0, 1; 0 on node 2" in said
    assert "number of GPUs" not in said


def test_missing_tools_are_said_and_the_verdict_claims_nothing_about_them(record: Callable[..., Record]) -> None:
    text = node_text(NOTHING)
    assert text.count("not available here: nvidia-smi is not installed on this node") == 4
    assert "not available here: ibstat is not installed" in text and all(test.title in text for test in TESTS)
    assert judge_node(NOTHING) == []
    some = record(p2p_read="no_driver.txt", infiniband="leonardo_ibstat.txt")
    line = verdict_line(judge_node(some), [some, {**NOTHING, "node": 1}])
    assert "VERDICT: No problem on 2 nodes: infiniband (tested on 1). No collective" in line
    assert "begins: NVIDIA-SMI has failed" in line and "ended with 3: no such thing" in line
    assert line.endswith(
        "p2p_read, p2p_write, p2p_nvlink, topology (nvidia-smi is not installed on this node); "
        "infiniband (ibstat is not installed on this node)."
    )


def measured(device: str = "cpu", correct: bool = True, **link_gbps: float) -> Record:
    """collectives.json of two collectives in one scope."""
    results = [
        {"collective": name, "scope": "intra", "points": [{"correct": correct or name != "broadcast"}]}
        for name in ("all_reduce", "broadcast")
    ]
    about = {"schema": 2, "backend": "gloo", "device": device, "device_name": "CPU (x86_64)", "world_size": 2}
    return {**about, "link_gbps": {"intra": None, "inter": None, **link_gbps}, "results": results}


def test_the_verdict_says_what_was_measured_and_why_its_speed_cannot_be_judged() -> None:
    line = verdict_line(judge_nodes([NOTHING], 1, None, measured()), [NOTHING], measured())
    assert line.startswith(
        "VERDICT: 2 collectives were measured between 2 ranks (gloo, CPU (x86_64)), all results right. The "
        "speed cannot be judged: between processes on CPUs there is no link with a known rate. Not tested: p2p_read"
    )
    assert "site file" in verdict_line([], [NOTHING], measured("cuda"))
    assert "cannot be judged" not in verdict_line([], [NOTHING], measured("cuda", intra=2400.0))


def test_wrong_numbers_of_a_collective_are_a_problem_of_the_verdict() -> None:
    found = measured(correct=False)
    (problem,) = judge_nodes([NOTHING], 1, None, found)
    assert (problem.level, problem.message) == ("problem", "broadcast (intra) gave wrong numbers")
    line = verdict_line([problem], [NOTHING], found)
    assert line.startswith("VERDICT: 1 problem on 1 node. 2 collectives were") and "with wrong results" in line


def test_from_the_command_line_each_node_then_the_verdict(tmp_path: Path) -> None:
    # -S: no site-packages. A node's own Python, with nothing installed, must do.
    run = partial(run_script, tmp_path, python=("-S",), environment={"PATH": str(tmp_path)})
    for node in ("0", "1"):
        assert run("topology", "--node", node)[0] == 0
    code, output, _ = run("verdict", "--nodes", "2")
    assert code == 0 and "VERDICT: No collective was measured" in output
    assert output.count("is not installed") == 2 and max(map(len, output.splitlines())) <= 78
    (tmp_path / "comm/collectives.json").write_text(json.dumps(measured()))
    assert "VERDICT: 2 collectives were measured between 2 ranks" in run("verdict", "--nodes", "2")[1]
    assert run("verdict", "--nodes", "3")[0] == 0
    node, verdict = (json.loads((tmp_path / f"comm/{name}.json").read_text()) for name in ("node1", "verdict"))
    assert node["node"] == 1 and verdict["findings"][-1]["message"] == "node 2 wrote no result"


REFUSED: dict[str, tuple[str, dict[str, str]]] = {
    "verdict": ("holds no node*.json; run `topology` first", {}),
    "collectives": ("must be started by torchrun", {}),
    "collectives --max-bytes lots": ("invalid int value: 'lots'", {}),
    "topology": ("--node", {}),
    "topology --node 0": ("comm cannot be made (Not a directory)", {}),
    "collectives --device cpu": ("comm cannot be made (Not a directory)", ALONE),  # before it measures
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(tmp_path: Path, words: str) -> None:
    sentence, environment = REFUSED[words]
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" if "Not a directory" in sentence else tmp_path / "run"
    code, output, errors = run_script(folder, *words.split(), environment=environment)
    assert (code, output) == (2, "") and sentence in errors and "Traceback" not in errors
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
