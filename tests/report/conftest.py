"""One job for all tests of the page, measured and written once; and a page of each sort."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.analysis.summary import Summary
from harness.cli.main import main
from harness.measure.paths import measure_jobs
from harness.report.exercise_0.links import links_of_run
from harness.report.page.compose import compose, render_page, write_page
from harness.report.page.inputs import Inputs
from harness.run import Run
from tests.synthetic.job import write_traces

if TYPE_CHECKING:
    from chromium import Chromium

# What a browser's test evaluates to see the whole page.
UNFOLD = "document.querySelectorAll('details.part').forEach((part) => { part.open = true; })"
ALL_DRAWN = "Plots.drawn.size === document.querySelectorAll('[data-figure]').length"
COLLECTIVES = ("all_reduce", "all_gather", "broadcast")


@dataclass(frozen=True)
class Made:
    """A page, and the Summary it is about."""

    page: Path
    summary: Summary


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The one browser; each test or module opens a page of its own in it."""
    pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
    from chromium import Chromium, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed: the page cannot be looked at")
    with Chromium(program) as started:
        yield started


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The page of two ranks whose names and folder attack it."""
    folder = tmp_path_factory.mktemp("page") / 'a "quoted" <i>folder'
    write_traces(folder)
    (summary,) = measure_jobs([folder])
    page = folder / "report.html"
    write_page(None, summary, page)
    return Made(page, summary)


@pytest.fixture(scope="session")
def pages(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sort by its name: a report, a comparison, the communication tests."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("one", "two"):
        write_traces(folder / name)
    compared, tested = folder / "compared.html", folder / "tested.html"
    assert main(["compare", str(folder / "one"), str(folder / "two"), "--html", str(compared)]) == 0
    inputs = Inputs(tested=links_of_run(_tested_run(folder / "run")).fits)
    tested.write_text(render_page(compose(Summary(), inputs)))
    return {"report": made.page, "comparison": compared, "communication tests": tested}


class Named(Run):
    """A run with an incomplete record."""

    job_id = "7"


def _tested_run(path: Path) -> Run:
    """A run of exercise 0 with the same line for every collective."""
    points = [
        {"message_bytes": 2**k, "time_ns": 2000 + 0.05 * 2**k, "busbw_gbytes_per_s": 2**k / 1e6, "correct": True}
        for k in range(10, 24, 2)
    ]
    fit = {"alpha_ns": 2000.0, "beta_ns_per_byte": 0.05}
    results = [{"collective": name, "scope": "intra", "ranks": 4, "points": points, "fit": fit} for name in COLLECTIVES]
    (path / "comm").mkdir(parents=True)
    (path / "run.json").write_text('{"job_id": "7"}')
    (path / "comm/collectives.json").write_text(json.dumps({"results": results}))
    return Named(path)
