"""`report` on a run of exercise 0 says its verdict and what each collective gave, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.report.exercise_0.terminal import is_comm_run, render_comm

PROBLEM = {
    "verdict": "VERDICT: 1 problem",
    "findings": [{"level": "problem", "test": "topology", "message": "node 1: GPU0-GPU3 talk over SYS"}],
}


def a_run(folder: Path, results: list[dict[str, Any]] | None, **files: Any) -> Path:
    """A run of exercise 0 with these collectives. files: the content of others in comm/."""
    (folder / "comm").mkdir()
    (folder / "run.json").write_text("{}")
    measured = {"world_size": 4, "backend": "nccl", "device_name": "A100", "results": results}
    given = {} if results is None else {"verdict": PROBLEM, "collectives": measured}
    for name, content in {**given, **files}.items():
        (folder / f"comm/{name}.json").write_text(json.dumps(content))
    return folder


def a_result(size: int, **changed: Any) -> dict[str, Any]:
    correct = changed.pop("correct", True)
    point = {"message_bytes": size, "time_ns": 5e6, "busbw_gbytes_per_s": 200.0, "share_of_link": 0.66}
    # 200 GB/s of algorithm bandwidth, 300 on the bus
    fit = {"alpha_ns": 20_000.0, "beta_ns_per_byte": 0.005, "r2_log": changed.pop("r2_log", 0.99)}
    usual = {"collective": "all_reduce", "scope": "intra", "ranks": 4, "fit": fit}
    return {**usual, "points": [{**point, "correct": correct}], **changed}


def test_the_verdict_comes_first_then_the_collectives(tmp_path: Path) -> None:
    folder = a_run(tmp_path, [a_result(1 << 30)])
    text = render_comm(folder)
    assert text.startswith("VERDICT: 1 problem\n  problem: node 1: GPU0-GPU3 talk over SYS")
    row = next(line for line in text.splitlines() if "all_reduce" in line)
    assert row.split() == ["all_reduce", "intra", "4", "1", "GiB", "200", "66.0", "%", "20.0", "µs", "300"]
    assert "limit: bus bandwidth of an" in text and "Without α" not in text
    assert max(len(line) for line in text.splitlines() if "plot:" not in line) < 80
    assert "VERDICT" not in render_comm(folder, verdict_was_shown=True)


ABSENT = a_result(1, collective="all_to_all", points=[], fit=None, reason="not available")
HEALTH = {"verdict": "HEALTH: fail: rank 1: GEMM 20", "findings": [], "lines": ["  place  GEMM", "  rank 1  20"]}

# Collectives, other files, what is said.
CASES: dict[str, tuple[list[dict[str, Any]] | None, dict[str, Any], tuple[str, ...]]] = {
    "too few sizes": ([a_result(1024, fit=None)], {}, ("1 KiB", "Without α: too few message sizes")),
    "off the line": (
        [a_result(1 << 30, r2_log=-0.055)], {}, ("66.0 % R² -0.06 –", "do not lie on a straight line (at least 0.9"),
    ),
    "wrong and not measured": ([a_result(1024, correct=False), ABSENT], {}, ("WRONG RESULTS", "not available")),
    "it ended early": (None, {}, ("No verdict", "No collective was measured")),
    "one process": (
        None, {"collectives": {"reason": "one process", "results": []}}, ("No collective was measured: one process",)
    ),
    "damaged": (
        [{"collective": "all_reduce", "fit": {"alpha_ns": 1}}], {"verdict": {}},
        ("verdict.json is damaged (verdict: Field required)",
         "collectives.json is damaged (results.0.scope: Field required)"),
    ),
    "another test": (None, {"verdict": HEALTH}, ("place GEMM rank 1 20 HEALTH: fail: rank 1: GEMM 20",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_wrong_or_another_test_is_said(tmp_path: Path, case: str) -> None:
    results, files, said = CASES[case]
    folder = a_run(tmp_path, results, **files)
    text = " ".join(render_comm(folder).split())
    assert is_comm_run(folder) and not [words for words in said if words not in text], text
