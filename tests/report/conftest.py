"""One job for all tests of the page, measured and written once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.analysis.summary import Summary
from harness.measure.paths import measure_jobs
from harness.report.page.compose import write_page
from tests.synthetic.job import write_traces

if TYPE_CHECKING:
    from chromium import Chromium

# What a browser's test evaluates to see the whole page.
UNFOLD = "document.querySelectorAll('details.part').forEach((part) => { part.open = true; })"
ALL_DRAWN = "Plots.drawn.size === document.querySelectorAll('[data-figure]').length"


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
