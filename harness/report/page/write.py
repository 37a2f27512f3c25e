"""Which page goes where: a run's own beside its summary, any other where it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.summary import Summary
from harness.common.errors import RequestError
from harness.measure.paths import is_run
from harness.measure.request import resolve
from harness.report.page.compose import compose, figures, read_inputs, write_page
from harness.run import Run
from harness.traces.progress import Progress

PAGE = "report.html"


def write_pages(
    tokens: Sequence[str],
    summaries: Sequence[Summary],
    asked: Path | None,
    ranks: frozenset[int] | None = None,
) -> list[Path]:
    """Write the page of the one job there is: to `asked`, else into the run it is about, else nowhere.

    Several jobs get one page each, numbered, beside `asked`. Raises RequestError when `asked` is a folder,
    WorkError when a page cannot be written where it was asked for.
    """
    if asked is not None and asked.is_dir():
        raise RequestError(f"--html {asked}: is a folder; give a file, as in --html {asked / PAGE}")
    paths = [resolve(token) for token in tokens]
    run = Run(paths[0]) if len(paths) == 1 and is_run(paths[0]) else None
    if asked is None:
        return (
            [_write(run, summaries[0], run.path / PAGE, ranks)]
            if run is not None and len(summaries) == 1
            else []
        )
    if len(summaries) == 1:
        return [_write(run, summaries[0], asked, ranks)]
    return [
        _write(None, summary, asked.with_name(f"{asked.stem}-{number}{asked.suffix}"), ranks)
        for number, summary in enumerate(summaries, 1)
    ]


def _write(run: Run | None, summary: Summary, path: Path, ranks: frozenset[int] | None) -> Path:
    unknown = sorted((ranks or frozenset()) - set(summary.ranks))
    if unknown:
        least, most = min(summary.ranks, default=None), max(summary.ranks, default=None)
        there = "no trace here says its rank" if least is None else f"the ranks are {least} to {most}"
        raise RequestError(f"--ranks {unknown[0]}: there is no such rank; {there}")
    with Progress("drawing the page") as progress:
        write_page(run, summary, path, ranks, progress)
    return path


def write_pictures(tokens: Sequence[str], summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Every plot of every page as `folder`/<figure>.png. Raises WorkError when they cannot be written."""
    from harness.report.plots.png import write_pngs  # noqa: PLC0415 - a page needs no matplotlib

    paths = [resolve(token) for token in tokens]
    run = Run(paths[0]) if len(paths) == 1 and is_run(paths[0]) else None
    written: list[Path] = []
    for number, summary in enumerate(summaries, 1):
        page = compose(summary, read_inputs(run, summary))
        name = f"{number}-" if len(summaries) > 1 else ""
        written += write_pngs(figures(page), folder, name)
    return written
