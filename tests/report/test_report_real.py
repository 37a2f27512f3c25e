"""Pages of real traces: valid, small, and without an error in a browser. Skipped where the traces are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.measure.paths import measure_jobs
from harness.report.page.compose import write_page
from tests.real_traces import real_trace

pytest.importorskip("html5lib", reason="pip install html5lib: it validates the page")
pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Browser, Chromium

from tests.report.test_report_page import all_of, parse

TRACES = (
    "kineto_dlrm_v100_8ranks",
    "kineto_a100_collective_args",
    "kineto_resnet50_workers/num_workers_0.json.gz",
    "nsys_a100_ddp_4gpu/rank0.sqlite.gz",
    "nsys_h100_2gpu_ab/before.sqlite",
)
ALIKE = (  # to others, for a browser
    *("kineto_a100_collective_args", "nsys_a100_ddp_4gpu/rank0.sqlite.gz"),
    *("kineto_resnet50_workers/num_workers_0.json.gz", "kineto_dlrm_v100_8ranks"),
)


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Iterator[Browser]:
    with chromium.page() as browser:
        yield browser


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.long if each in ALIKE else ()) for each in TRACES]
)
def test_the_page_of_a_real_trace_is_valid_and_small_and_works(name: str, tmp_path: Path, browser: Browser) -> None:
    (summary,), page = measure_jobs([real_trace(name)]), tmp_path / "report.html"
    write_page(None, summary, page)
    assert page.stat().st_size < 6_000_000
    assert len(all_of(parse(page.read_text()), "figure")) >= 3
    browser.problems.clear()
    browser.open(page)
    browser.wait("document.body.dataset.timeline === 'ready'")
    for factor in (1, 7, 60, 900):
        browser.evaluate(f"Timeline.fitAll(); Timeline.zoom({factor}); Timeline.draw()")
    counts = browser.evaluate("Timeline.totals(...Timeline.whole).map(([, parts]) => parts.length)")
    assert counts and all(count > 1 for count in counts)
    browser.wait("document.body.dataset.plots === 'ready'")
    assert browser.problems == []
