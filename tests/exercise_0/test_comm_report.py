"""`report` on a run of exercise 0 says its verdict and what each collective gave, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

from harness.report.exercise_0.terminal import is_comm_run, render_comm


def a_run(folder: Path, results: list[dict[str, object]] | None) -> Path:
    (folder / "comm").mkdir()
    (folder / "run.json").write_text("{}")
    if results is not None:
        finding = {"level": "problem", "test": "topology", "message": "node 1: GPU0-GPU3 talk over SYS"}
        verdict = {"schema": 1, "verdict": "VERDICT: 1 problem", "findings": [finding]}
        (folder / "comm" / "verdict.json").write_text(json.dumps(verdict))
        measured = {"world_size": 4, "backend": "nccl", "device_name": "A100", "results": results}
        (folder / "comm" / "collectives.json").write_text(json.dumps(measured))
    return folder


def a_point(size: int, correct: bool = True) -> dict[str, object]:
    return {
        "message_bytes": size,
        "time_ns": 5e6,
        "busbw_gbytes_per_s": 200.0,
        "share_of_link": 0.66,
        "correct": correct,
    }


def test_the_verdict_comes_first_then_the_collectives(tmp_path: Path) -> None:
    fit = {"alpha_ns": 20_000.0, "beta_ns_per_byte": 0.005}  # 200 GB/s of algorithm bandwidth, 300 on the bus
    good = {"collective": "all_reduce", "scope": "intra", "ranks": 4, "points": [a_point(1 << 30)], "fit": fit}
    text = render_comm(a_run(tmp_path, [good]))
    assert text.startswith("VERDICT: 1 problem\n  problem: node 1: GPU0-GPU3 talk over SYS")
    row = next(line for line in text.splitlines() if "all_reduce" in line)
    assert row.split() == ["all_reduce", "intra", "4", "1", "GiB", "200", "66.0", "%", "20.0", "µs", "300"]
    assert "limit: bus bandwidth of an" in text and "Without α" not in text
    lines = [line for line in text.splitlines() if "plot:" not in line]
    assert max(map(len, lines)) < 80


def test_the_verdict_is_not_repeated_below_the_runs_own_output(tmp_path: Path) -> None:
    folder = a_run(tmp_path, [])
    assert "VERDICT" not in render_comm(folder, verdict_was_shown=True)
    (folder / "comm" / "verdict.json").unlink()
    assert "No verdict" in render_comm(folder, verdict_was_shown=True)


def test_too_few_sizes_for_a_line_are_reported_as_such(tmp_path: Path) -> None:
    one = {"collective": "all_reduce", "scope": "intra", "ranks": 4, "points": [a_point(1024)], "fit": None}
    text = render_comm(a_run(tmp_path, [one]))
    assert "1 KiB" in text and "Without α: too few message sizes" in " ".join(text.split())


def test_wrong_results_and_unmeasured_collectives_are_named(tmp_path: Path) -> None:
    wrong = {"collective": "broadcast", "scope": "world", "ranks": 4, "points": [a_point(1024, correct=False)]}
    absent = {"collective": "all_to_all", "scope": "world", "ranks": 4, "points": [], "reason": "not available"}
    text = render_comm(a_run(tmp_path, [wrong, absent]))
    assert "WRONG RESULTS" in text
    assert "not available" in text


def test_a_run_that_ended_early_says_so(tmp_path: Path) -> None:
    folder = a_run(tmp_path, None)
    assert is_comm_run(folder)
    assert "No verdict" in render_comm(folder)
    assert "No collective was measured" in render_comm(folder)


def test_damaged_files_are_named_instead(tmp_path: Path) -> None:
    folder = a_run(tmp_path, [{"collective": "all_reduce", "fit": {"alpha_ns": 1}}])
    (folder / "comm" / "verdict.json").write_text("{}")
    text = render_comm(folder)
    assert f"No verdict: {folder / 'comm' / 'verdict.json'} is damaged (verdict: Field required)" in text
    assert "collectives.json is damaged (results.0.scope: Field required)" in text


def test_why_nothing_was_measured_is_said(tmp_path: Path) -> None:
    folder = a_run(tmp_path, [])
    reason = "a collective needs two processes"
    (folder / "comm" / "collectives.json").write_text(json.dumps({"reason": reason, "results": []}))
    assert f"No collective was measured: {reason}" in render_comm(folder)


def test_a_test_in_place_of_the_collectives_shows_its_table_and_its_answer(tmp_path: Path) -> None:
    folder = a_run(tmp_path, None)
    verdict = {"verdict": "HEALTH: fail: rank 1: GEMM 20", "findings": [], "lines": ["  place  GEMM", "  rank 1  20"]}
    (folder / "comm" / "verdict.json").write_text(json.dumps(verdict))
    assert render_comm(folder) == "  place  GEMM\n  rank 1  20\n\nHEALTH: fail: rank 1: GEMM 20\n"
    assert render_comm(folder, verdict_was_shown=True) == ""
