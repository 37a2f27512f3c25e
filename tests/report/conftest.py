"""One job for all tests of the page, measured and written once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.analysis.measure_paths import measure_jobs
from harness.analysis.summary import Summary
from harness.report.page import write_page
from tests.report.made_run import write_traces


@dataclass(frozen=True)
class Made:
    """A page, and the Summary it is about."""

    page: Path
    summary: Summary


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The page of two ranks whose names and folder attack it."""
    folder = tmp_path_factory.mktemp("page") / 'a "quoted" <i>folder'
    write_traces(folder)
    (summary,) = measure_jobs([folder])
    page = folder / "report.html"
    write_page(None, summary, page)
    return Made(page, summary)
