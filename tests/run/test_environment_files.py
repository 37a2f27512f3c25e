"""What a node wrote of its environment is checked before it is believed, and nodes that are equal are one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measure.environments import read_environments

GOOD = {
    "packages": {"torch": "2.7"},
    "used": ["torch"],
    "variables": {"NCCL_ALGO": "Ring"},
    "system": {"kernel": "6.1"},
}


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_equal_nodes_are_one_entry(tmp_path: Path) -> None:
    files = [written(tmp_path, f"n{i}-{i}", {"host": f"n{i}", **GOOD, "later": 1}) for i in (1, 0)]
    files.append(written(tmp_path, "n2-2", {"host": "n2", **GOOD, "used": None}))
    found, problems = read_environments(files)
    assert [each.nodes for each in found] == [["n0", "n1"], ["n2"]] and problems == []
    assert found[0].packages == {"torch": "2.7"} and found[1].used is None


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"host": 3', {"host": "n0", "packages": ["torch"]}, {"host": "n0", "used": {"torch": 1}},
        {"host": ["n0"]}, {"host": "n0", "variables": {"A": {"B": "C"}}}, '{"host": "\\ud800"}', "[" * 100_000,
        {"host": "n0", "packages": {"a": "1" * (1 << 20)}},
    ],
)  # fmt: skip
def test_a_wrong_file_is_a_remark_and_the_others_count(tmp_path: Path, content: object) -> None:
    files = [written(tmp_path, "bad", content), written(tmp_path, "good", {"host": "n1", **GOOD})]
    found, (problem,) = read_environments(files)
    assert [each.nodes for each in found] == [["n1"]]
    assert problem.evidence.startswith("bad.json: ") and len(problem.evidence) < 300


def test_a_text_steers_no_terminal(tmp_path: Path) -> None:
    (found,), _ = read_environments([written(tmp_path, "n0-0", {"host": "\x1b[31mn0", "modules": ["a\nb"]})])
    assert (found.nodes, found.modules) == (["[31mn0"], ["a b"])
