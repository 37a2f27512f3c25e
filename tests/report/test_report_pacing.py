"""Pacing in page and terminal: who is behind is named, and the picture stays legible for 1,000 ranks."""

from __future__ import annotations

import pytest

from harness.analysis.summary import Summary
from harness.report.page.inputs import Inputs
from harness.report.page.steps import steps_section
from harness.report.plots.plots import pace_figure
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


@pytest.mark.parametrize(
    ("slow", "told"),
    [((), None), ((33, 34, 35, 36, 99), "2 more nodes are behind in the same way; 4 of all are on switch leaf02.")],
)
def test_nobody_is_named_where_nobody_is_behind_and_of_many_the_first_three(
    slow: tuple[int, ...], told: str | None
) -> None:
    texts = pace_sentences(Summary(pacing=paced(job(250, 50, dict.fromkeys(slow, 0.2)), SWITCHES)))
    assert texts[3:] == ([told] if told else []) and len(texts) == (4 if told else 0)


def test_250_nodes_have_a_row_each_and_the_axis_names_switches() -> None:
    assert MANY.pacing is not None
    figure = pace_figure(MANY.pacing)
    assert figure is not None
    names = figure.layout["yaxis"]["ticktext"]
    assert {"leaf00", "leaf15"} <= set(names)
    assert [layer["name"] for layer in figure.data] == ["step time", "own work", "lag at the step's end"]
    assert all(len(layer["z"]) == len(set(layer["y"])) == 250 for layer in figure.data)
    assert "grouped by the switch that Slurm's topology names (16), and by node" in figure.caption


@pytest.mark.parametrize(("nodes", "words"), [(2, "by node; Slurm named no switches"), (1, "by node")])
def test_without_a_topology_the_page_says_so(nodes: int, words: str) -> None:
    figure = pace_figure(paced(job(nodes, 5)))
    assert figure is not None
    assert f"grouped {words}." in figure.caption
    assert "ticktext" not in figure.layout["yaxis"], "each of a few rows has its name"


@pytest.mark.parametrize(("slow", "least"), [({}, 5.0), ({3: 0.3}, 25.0)])
def test_the_colours_reach_to_who_is_behind(slow: dict[int, float], least: float) -> None:
    figure = pace_figure(paced(job(16, 20, slow, noise=0.01)))
    assert figure is not None
    assert -figure.data[0]["zmin"] == figure.data[0]["zmax"] >= least and (slow or figure.data[0]["zmax"] == least)
