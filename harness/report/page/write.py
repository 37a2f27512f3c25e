"""The place of each page: a run's page is beside its summary; any other page is where the user asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.summary import Summary
from harness.common.errors import RequestError
from harness.measure.page_data import PageData
from harness.measure.paths import is_run
from harness.measure.request import Measurement, resolve_path
from harness.run import Run
from harness.traces.progress import ProgressLine


def run_among(tokens: Sequence[str]) -> Run | None:
    """The run of a request that names one run and no other path."""
    paths = [resolve_path(token) for token in tokens]
    return Run(paths[0]) if len(paths) == 1 and is_run(paths[0]) else None


def check_page(html: Path | None) -> None:
    """Check where a page is asked for. Raises RequestError: it is a folder."""
    if html is not None and html.is_dir():
        raise RequestError(f"--html {html}: is a folder; give a file, as in --html {Run(html).page}")


def write_pages(tokens: Sequence[str], measured: Measurement, html: Path | None) -> list[Path]:
    """Write the page of a job to `html`, else into its run; several jobs get one each, numbered, beside `html`."""
    run, (summaries, page_data) = run_among(tokens), measured
    page = html or (run.page if run else None)
    if page is None or (html is None and len(summaries) != 1):
        return []
    if len(summaries) == 1:
        return [_write(run, summaries[0], page, page_data)]
    return [
        _write(None, summary, page.with_name(f"{page.stem}-{number}{page.suffix}"), page_data)
        for number, summary in enumerate(summaries, 1)
    ]


def _write(run: Run | None, summary: Summary, path: Path, page_data: Sequence[PageData]) -> Path:
    from harness.report.page.compose import write_page  # jinja2: not for a report without a page

    with ProgressLine("drawing the page") as progress:
        write_page(run, summary, path, page_data, progress=progress)
    return path
