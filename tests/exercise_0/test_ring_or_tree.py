"""Ring or tree: the model's times, where they cross, and what the report of exercise 0 says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.report.exercise_0 import ring_or_tree
from harness.report.exercise_0.results import Fit, MeasuredCollective, MessagePoint
from harness.report.exercise_0.terminal import render_comm
from harness.report.page import steps
from harness.report.page.inputs import Inputs
from harness.theory.ring_or_tree import Hop, hop_of_ring
from tests.exercise_0.test_comm_report import a_run

HOP = Hop(alpha_ns=1000.0, beta_ns_per_byte=0.01)


def a_result(ranks: int, scope: str = "intra", r2_log: float = 1.0) -> MeasuredCollective:
    alpha_ns, beta = 6000.0, 0.015
    points = [
        MessagePoint(message_bytes=size, time_ns=alpha_ns + beta * size, busbw_gbytes_per_s=1.0, correct=True)
        for size in (1024, 65536, 1 << 20, 1 << 24)
    ]
    fit = Fit(alpha_ns=alpha_ns, beta_ns_per_byte=beta, r2_log=r2_log)
    return MeasuredCollective(collective="all_reduce", scope=scope, ranks=ranks, points=points, fit=fit)


@pytest.mark.parametrize("ranks", range(2, 70))
def test_the_tree_is_faster_below_the_border_and_the_ring_above(ranks: int) -> None:
    border = HOP.tree_up_to_bytes(ranks)
    assert (border > 0) == (ranks > 3)
    assert HOP.ring_ns(ranks, border) == pytest.approx(HOP.tree_ns(ranks, border), rel=1e-9) or ranks == 2
    assert HOP.ring_ns(ranks, 2 * border + 1) < HOP.tree_ns(ranks, 2 * border + 1)
    assert not border or HOP.tree_ns(ranks, border / 2) < HOP.ring_ns(ranks, border / 2)


@pytest.mark.parametrize(("ranks", "multiple"), [(2, 0), (3, 0), (4, 1), (8, 4), (16, 11), (32, 26), (64, 57)])
def test_the_border_is_a_multiple_of_alpha_over_beta_of_the_measured_line(ranks: int, multiple: int) -> None:
    """docs/communication.md has these multiples."""
    hop = hop_of_ring(6000.0, 0.015, ranks)
    assert hop.ring_ns(ranks, 1 << 30) == pytest.approx(6000.0 + 0.015 * (1 << 30))
    assert hop.tree_up_to_bytes(ranks) == pytest.approx(multiple * 6000.0 / 0.015)


def test_the_report_says_it_per_scope_with_the_measured_time_beside(tmp_path: Path) -> None:
    results = [a_result(4), a_result(3, "inter"), a_result(8, "world", r2_log=0.83)]
    text = render_comm(a_run(tmp_path, [r.model_dump() for r in results]))
    said = " ".join(text.split())
    assert "intra, 4 ranks: the tree up to 400 kB, the ring above" in said
    assert "inter, 3 ranks: the ring at every size" in said
    assert "world, 8 ranks" not in said and "R² 0.83 –" in said, "times that are off the line say nothing"
    assert "NCCL's own choice" in said
    found = [line.split() for line in text.splitlines() if line.startswith("  intra ") and "iB" in line]
    assert [(row[2:4], row[-1]) for row in found] == [
        (["1", "KiB"], "tree"), (["64", "KiB"], "tree"), (["16", "MiB"], "ring")
    ]  # fmt: skip
    assert found[0][4:8] == ["6.02", "µs", "4.02", "µs"]


def test_the_page_of_exercise_0_has_the_same_table() -> None:
    section = steps.tests_section(Summary(), Inputs(tested=[a_result(4)]))
    (table,) = (t for t in section.tables if t.caption == ring_or_tree.TITLE)
    assert [row[-1] for row in table.rows] == ["tree", "tree", "ring"]
    assert "the tree up to 400 kB" in section.note


def test_without_a_line_or_with_two_ranks_nothing_is_said() -> None:
    flat = a_result(4).model_copy(update={"fit": Fit(alpha_ns=6000.0, beta_ns_per_byte=0.0, r2_log=1.0)})
    none = [a_result(1), a_result(2), a_result(4).model_copy(update={"fit": None}), a_result(4, r2_log=0.83), flat]
    assert ring_or_tree.rows(none) == [] and ring_or_tree.answers(none) == ""
