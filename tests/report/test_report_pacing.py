"""Pacing in page and terminal: who is behind is named, and the picture stays legible for 1,000 ranks."""

from __future__ import annotations

import pytest

from harness.analysis.summary import Summary
from harness.report.page.inputs import Inputs
from harness.report.page.steps import steps_section
from harness.report.plots.plots import pace_figure
from harness.report.plots.plots import pace_scale_of as scale_of
from harness.report.tables.pace import pace_sentences
from harness.report.tables.terminal import render
from tests.analysis.paced_jobs import job, paced

SWITCHES = {f"node{n}": f"leaf{n // 16:02d}" for n in range(250)}
MANY = Summary(pacing=paced(job(250, 50, {41: 0.123}), SWITCHES))


def test_who_is_behind_is_said_first_in_terminal_and_page() -> None:
    (sentence,) = pace_sentences(MANY)
    assert sentence.startswith("node41 (switch leaf02, slowest rank 16")
    assert sentence.endswith("behind the median step in 50 of 50 steps.")
    assert "Pacing: node41 (switch leaf02" in render(MANY)
    assert "node41" in " ".join(steps_section(MANY, Inputs()).lead.split())
    assert "242 more places: export csv has all" in render(MANY)


def test_nobody_is_named_where_nobody_is_behind() -> None:
    healthy = Summary(pacing=paced(job(250, 50), SWITCHES))
    assert pace_sentences(healthy) == []
    assert "Pacing: node" not in render(healthy)


def test_of_many_the_first_three_are_named_and_the_rest_counted() -> None:
    slow = Summary(pacing=paced(job(250, 50, dict.fromkeys((33, 34, 35, 36, 99), 0.2)), SWITCHES))
    texts = pace_sentences(slow)
    assert len(texts) == 4
    assert texts[-1] == "2 more nodes are behind in the same way; 4 of all are on switch leaf02."


def test_250_nodes_have_a_row_each_and_the_axis_names_switches_and_who_is_behind() -> None:
    assert MANY.pacing is not None
    figure = pace_figure(MANY.pacing)
    assert figure is not None
    names = figure.layout["yaxis"]["ticktext"]
    assert "▶ node41" in names
    assert {"leaf00", "leaf15"} <= set(names)
    assert [layer["name"] for layer in figure.data] == ["step time", "own work", "lag at the step's end"]
    assert all(len(layer["z"]) == len(set(layer["y"])) == 250 for layer in figure.data)
    assert "grouped by the switch that Slurm's topology names (16), and by node" in figure.caption
    assert len(figure.layout["shapes"]) == 15


@pytest.mark.parametrize(("nodes", "words"), [(2, "by node; Slurm named no switches"), (1, "by node")])
def test_without_a_topology_the_page_says_so(nodes: int, words: str) -> None:
    figure = pace_figure(paced(job(nodes, 5)))
    assert figure is not None
    assert f"grouped {words}." in figure.caption
    assert "ticktext" not in figure.layout["yaxis"], "each of a few rows has its name"


def test_the_colours_reach_to_who_is_behind_and_are_shared_where_asked() -> None:
    healthy, slow = paced(job(16, 20, noise=0.01)), paced(job(16, 20, {3: 0.3}, noise=0.01))
    assert scale_of([healthy])[0] == 5.0
    ends = scale_of([healthy, slow])
    assert ends[0] >= 100 * slow.outliers[0].behind_share
    for pace in (healthy, slow):
        figure = pace_figure(pace, scale_ends=ends)
        assert figure is not None
        assert (figure.data[0]["zmin"], figure.data[0]["zmax"]) == (-ends[0], ends[0])
