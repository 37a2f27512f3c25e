"""A run is compared with what exercise 0 measured in groups of the same shape; lines in the plot have a length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Collective, MessageSize, Summary
from harness.experiment.exercises import CommTests
from harness.report.exercise_0.links import LinkResults, links_of_run, links_of_site
from harness.report.page import steps
from harness.report.page.inputs import Inputs
from harness.report.page.run import quality_section
from harness.report.page.steps import communication_section
from harness.run import Run
from harness.run.record import RunRecord
from harness.site.site import load_site


def a_record(name: str, created_ns: int) -> RunRecord:
    """Of a run on the local site."""
    return RunRecord(
        job_id=name, backend="local", experiment=CommTests(), site=load_site("local"), job={}, command=[], git={},
        versions={}, user="x", submit_host="x", created_ns=created_ns,
    )  # fmt: skip


def measured(scope: str, ranks: int, beta: float | None = 0.05) -> dict[str, Any]:
    """One all-reduce of exercise 0."""
    point = {"message_bytes": 1024, "time_ns": 3000.0, "busbw_gbytes_per_s": 0.5, "correct": True}
    fit = None if beta is None else {"alpha_ns": 2000.0, "beta_ns_per_byte": beta}
    return {"collective": "all_reduce", "scope": scope, "ranks": ranks, "points": [point], "fit": fit}


@pytest.fixture
def tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs with four of exercise 0: on two nodes, and newer ones on one node and with gloo."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    (tmp_path / "exercise_0_Communication_Tests/profiler").mkdir(parents=True)
    of_two = [measured("intra", 4, 0.01), measured("inter", 2, 0.04), measured("world", 8, 0.08)]
    a_run(tmp_path, "1-two-nodes", "nccl", of_two)
    a_run(tmp_path, "2-one-node", "nccl", [measured("intra", 4, 0.02)])
    a_run(tmp_path, "3-on-cpus", "gloo", [measured("world", 8, 9.0), measured("intra", 4, 9.0)])
    a_run(tmp_path, "4-one-size", "nccl", [measured("world", 8, None)])
    return tmp_path


def a_run(root: Path, name: str, backend: str, results: list[dict[str, Any]]) -> None:
    folder = root / "exercise_0_Communication_Tests/profiler" / name
    (folder / "comm").mkdir(parents=True)
    (folder / "run.json").write_text(a_record(name, created_ns=int(name[0])).model_dump_json())
    (folder / "comm/collectives.json").write_text(json.dumps({"backend": backend, "results": results}))


def a_summary(nodes: int, per_node: int, *groups: int, sizes: tuple[int, ...] = ()) -> Summary:
    """A training on a number of nodes whose all-reduces run in groups of these sizes."""
    return Summary(
        experiment={"exercise": 1, "nodes": nodes, "gpus_per_node": per_node},
        world_size=nodes * per_node,
        backend="nccl",
        collectives=[
            Collective(kind="all_reduce", group_size=size, count=1, ranks=1, duration_ns=1, mean_ns=1)
            for size in groups
        ],
        message_sizes=[a_message(groups[0], size) for size in sizes],
    )


def a_message(group: int, size: int) -> MessageSize:
    return MessageSize(
        kind="all_reduce", group_size=group, bytes=size, count=1, median_transfer_ns=9, includes_waiting=False
    )


def found(summary: Summary) -> LinkResults:
    return links_of_site(a_record("9-this-one", 9), summary)


@pytest.mark.parametrize(
    ("nodes", "per_node", "groups", "expected"),
    [
        (2, 4, (8,), [("world", 8, 0.08)]),  # not the newer run on one node, and not the run with gloo
        (1, 4, (4,), [("intra", 4, 0.02)]),  # the newest of them
        (2, 4, (4, 8), [("intra", 4, 0.02), ("world", 8, 0.08)]),  # sharded inside a node, reduced over all
        (2, 1, (2,), [("inter", 2, 0.04)]),
        (4, 4, (16,), []),
    ],
)
def test_a_run_is_compared_with_the_newest_that_measured_groups_like_its_own(
    tested: Path, nodes: int, per_node: int, groups: tuple[int, ...], expected: object
) -> None:
    links = found(a_summary(nodes, per_node, *groups))
    assert [(f.scope, f.ranks, f.fit and f.fit.beta_ns_per_byte) for f in links.fits] == expected


@pytest.mark.parametrize("sizes", [(4096,), (1024, 65536)])
def test_a_line_of_exercise_0_has_a_length_also_beside_one_message_size(tested: Path, sizes: tuple[int, ...]) -> None:
    summary = a_summary(2, 4, 8, sizes=sizes)
    section = communication_section(summary, Inputs(links=found(summary).fits))
    (figure,) = (f for f in section.figures if f.id == "transfer-times")
    (line,) = (trace for trace in figure.data if "exercise 0" in trace["name"])
    assert min(line["x"]) <= min(sizes) and max(line["x"]) >= max(sizes)
    assert max(line["x"]) > 3 * min(line["x"]) > 0


def test_exercise_0_with_one_message_size_still_has_its_page(tested: Path) -> None:
    run = Run(tested / "exercise_0_Communication_Tests/profiler/4-one-size")
    (run.path / "comm/verdict.json").write_text(
        json.dumps({"verdict": "VERDICT: 1 problem.", "findings": [{"level": "problem", "message": "slow"}]})
    )
    own = links_of_run(run)
    inputs = Inputs(tested=own.fits, verdict=own.verdict)
    assert steps.answer_sentences(inputs) == [
        "1 problem.",
        "Problem: slow.",
        "An all-reduce of all 8 ranks reaches 0.5 GB/s of bus bandwidth; α is not known, because too few message "
        "sizes were measured.",
    ]
    section = steps.tests_section(Summary(), inputs)
    assert "too few message sizes were measured for a line" in section.lead
    assert section.tables[0].rows == [["all_reduce", "world", "8", "0.5"]]


def test_a_damaged_file_is_named_and_the_rest_is_read(tested: Path) -> None:
    folder = tested / "exercise_0_Communication_Tests/profiler"
    run = Run(folder / "1-two-nodes")
    (run.path / "comm" / "verdict.json").write_text('{"verdict')
    own = links_of_run(run)
    assert len(own.fits) == 3 and len(own.left_out) == 1 and "verdict.json" in own.left_out[0]
    a_run(tested, "5-damaged", "nccl", [{"collective": "all_reduce", "fit": {"alpha_ns": 1}}])
    links = found(a_summary(2, 4, 8))
    assert [fit.scope for fit in links.fits] == ["world"]
    assert links.left_out[0].endswith("comm/collectives.json is damaged (results.0.scope: Field required)")


def test_the_page_of_exercise_0_has_both_bandwidths_the_start_and_where_its_numbers_come_from(tested: Path) -> None:
    own = links_of_run(Run(tested / "exercise_0_Communication_Tests/profiler/1-two-nodes"))
    inputs = Inputs(tested=own.fits)
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
