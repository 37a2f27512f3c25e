"""What exercise 0 measured, as the page of its run tells it; a damaged file is named and the rest is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary
from harness.report.exercise_0.links import links_of_run
from harness.report.page import steps
from harness.report.page.inputs import Inputs
from harness.report.page.run import quality_section
from harness.run import Run


def measured(scope: str, ranks: int, beta: float | None) -> dict[str, Any]:
    """One all-reduce of exercise 0."""
    point = {"message_bytes": 1024, "time_ns": 3000.0, "busbw_gbytes_per_s": 0.5, "correct": True}
    fit = None if beta is None else {"alpha_ns": 2000.0, "beta_ns_per_byte": beta, "r2_log": 0.99}
    return {"collective": "all_reduce", "scope": scope, "ranks": ranks, "points": [point], "fit": fit}


ON_TWO_NODES = measured("intra", 4, 0.01), measured("inter", 2, 0.04), measured("world", 8, 0.08)


def a_run(folder: Path, *results: dict[str, Any], verdict: str) -> Run:
    (folder / "comm").mkdir()
    (folder / "comm/collectives.json").write_text(json.dumps({"backend": "nccl", "results": results}))
    (folder / "comm/verdict.json").write_text(verdict)
    return Run(folder)


def test_exercise_0_with_one_message_size_still_has_its_page(tmp_path: Path) -> None:
    verdict = {"verdict": "VERDICT: 1 problem.", "findings": [{"level": "problem", "message": "slow"}]}
    own = links_of_run(a_run(tmp_path, measured("world", 8, None), verdict=json.dumps(verdict)))
    inputs = Inputs(tested=own.measured, verdict=own.verdict)
    assert steps.answer_sentences(inputs) == [
        "1 problem.",
        "Problem: slow.",
        "An all-reduce of all 8 ranks reaches 0.5 GB/s of bus bandwidth; α is not known, because too few message "
        "sizes were measured.",
    ]
    section = steps.tests_section(Summary(), inputs)
    assert "too few message sizes were measured for a line" in section.lead
    assert section.tables[0].rows == [["all_reduce", "world", "8", "0.5"]]


@pytest.mark.parametrize(
    ("results", "verdict", "count", "damaged"),
    [
        (ON_TWO_NODES, '{"verdict', 3, "comm/verdict.json is damaged"),
        (
            [{"collective": "all_reduce", "fit": {"alpha_ns": 1}}],
            '{"verdict": "", "findings": []}',
            0,
            "comm/collectives.json is damaged (results.0.scope: Field required)",
        ),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_read(
    tmp_path: Path, results: list[dict[str, Any]], verdict: str, count: int, damaged: str
) -> None:
    own = links_of_run(a_run(tmp_path, *results, verdict=verdict))
    assert len(own.measured) == count
    (said,) = own.left_out
    assert damaged in said


def test_the_page_of_exercise_0_has_both_bandwidths_the_start_and_where_its_numbers_come_from(tmp_path: Path) -> None:
    inputs = Inputs(tested=links_of_run(a_run(tmp_path, *ON_TWO_NODES, verdict="")).measured)
    table, *_ = steps.tests_section(Summary(), inputs).tables
    alg, bus = table.head.index("1/β (alg GB/s)"), table.head.index("1/β (bus GB/s)")
    assert [(row[alg], row[bus]) for row in table.rows] == [("100", "150"), ("25", "25"), ("12.5", "21.9")]
    assert "best measured (bus GB/s)" in table.head
    assert steps.answer_sentences(inputs)[1] == (
        "An all-reduce of 2 ranks, one on each node, starts in 2.00 µs and reaches 0.5 GB/s of bus bandwidth; messages "
        "of about 50.0 kB reach half of the highest bandwidth."
    )
    section = quality_section(Summary(experiment={"exercise": 0}, run={"expects": []}))
    assert section.note == ("Recording: none was asked for. What is here, the tests timed themselves.")
