"""`slurm.sh report`: parse, measure, print. Knows neither how a number is computed nor how it is shown."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli.options import JsonOption, run_names
from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM, expanded

if TYPE_CHECKING:
    from harness.analysis.summary import Summary
    from harness.measure.request import Measurement

WindowChoice = Literal["steps", "gpu"]
PathsArgument = Annotated[
    list[str],
    typer.Argument(metavar="RUN|PATH", autocompletion=run_names, help="runs, trace files, or folders of them"),
]
WindowOption = Annotated[
    WindowChoice, typer.Option("--window", help="the counted time: the profiled steps, or first to last GPU event")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="processes that read traces")]


def report(
    paths: PathsArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="print every table, not only the answer")] = False,
    as_json: JsonOption = False,
    window: WindowOption = "steps",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the page here [of a run: report.html in its folder]")
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="write no page")] = False,
    workers: WorkersOption = None,
) -> None:
    """Show where the time went, in a run or in any traces. If the path holds several jobs, it lists them and reads
    none. Of a memory snapshot of PyTorch (snapshot.pickle): who held the memory."""
    from harness.measure.request import ReportRequest, measure_request
    from harness.report.page.write import check_page, run_among

    if _is_snapshot(paths, html):
        return _show_snapshot(expanded(paths[0]), full, as_json)
    check_page(html)
    _learn_how_they_ended(paths)
    # A run has a page only of the window that its summary is about.
    wanted = html is not None or (window == "steps" and not no_html)
    request = ReportRequest(
        tokens=paths, window=window, workers=workers, page=bool(html or (wanted and run_among(paths)))
    )
    measured = measure_request(request)
    written = _pages(paths, measured, html) if wanted else []
    if as_json:
        print(json_text(measured.summaries))
        return
    _show(paths, measured.summaries, full, written)


def _is_snapshot(paths: list[str], html: Path | None) -> bool:
    """Whether the one path is a memory snapshot. Raises RequestError: one is, and is not alone, or gets a page."""
    from harness.traces.plain_pickle import is_pickle

    found = next((path for path in paths if is_pickle(expanded(path))), None)
    if found is not None and (len(paths) > 1 or html is not None):
        beside = "leave --html out, it has no page" if len(paths) == 1 else "a snapshot is reported alone"
        raise RequestError(f"{printable(found)}: is a memory snapshot of PyTorch: {beside}")
    return found is not None


def _show_snapshot(path: Path, full: bool, as_json: bool) -> None:
    from harness.analysis.snapshot import numbers_of
    from harness.cli.terminal import columns, show
    from harness.report.snapshot import snapshot_text
    from harness.report.tables.table import WIDTH
    from harness.traces.plain_pickle import map_pickle

    numbers = map_pickle(path, numbers_of)
    if as_json:
        print(numbers.model_dump_json(indent=1))
    else:
        show(snapshot_text(printable(path.name), numbers, columns(WIDTH), full=full))


def _learn_how_they_ended(paths: list[str]) -> None:
    """Of runs whose end is not certain, so that the report says of it what `status` says."""
    from harness.launch.poll import look_at
    from harness.measure.request import resolve_path
    from harness.run import Run

    for run in map(Run, map(resolve_path, paths)):
        if run.is_run and ((own := run.status()) is None or not own.is_settled):
            with suppress(WorkError):  # the backend of another installation
                look_at(run)


def json_text(summaries: list[Summary]) -> str:
    """One summary as a JSON object; several as a list."""
    texts = [summary.model_dump_json(indent=1) for summary in summaries]
    return texts[0] if len(texts) == 1 else "[" + ",\n".join(texts) + "]"


def _show(paths: list[str], summaries: list[Summary], full: bool, pages: list[Path]) -> None:
    from harness.cli.terminal import columns, show
    from harness.cli.watch.of_job import of_job
    from harness.measure.request import resolve_path
    from harness.report.exercise_0.terminal import is_comm_run, render_comm
    from harness.report.first_screen import first_screen, place_of, whole_report
    from harness.report.tables.table import WIDTH
    from harness.report.tables.terminal import render_rest, render_section
    from harness.run import Run

    tests, width = [path for path in map(resolve_path, paths) if is_comm_run(path)], columns(WIDTH)
    if len(tests) == len(paths):
        told = [render_section(s, "nccl", width) for s in summaries if s.nccl is not None]
        show("\n".join([*map(render_comm, tests), *told]))
        if pages:
            show(f"\nThe page: {printable(', '.join(map(str, pages)))}\n")
        return
    if len(paths) == 1 and (run := Run(resolve_path(paths[0]))).is_run and (several := of_job(run, paths[0])):
        show("\n".join([*several, "", ""]))
    for number, s in enumerate(summaries):
        page = pages[number] if len(pages) == len(summaries) else next(iter(pages), None)
        show(first_screen(s, width, more="" if full else whole_report(paths, s), page=page))
        if full:
            show(f"\n{render_rest(s, width)}")
    if len(summaries) == 2:
        show(f"\nHow the two differ: {COMMAND} compare {shlex.join(map(place_of, summaries))}\n")


def _pages(paths: list[str], measured: Measurement, html: Path | None) -> list[Path]:
    """Write the pages: where asked, else into the run. There, a full or read-only disk is only a warning."""
    from harness.report.page.write import write_pages
    from harness.run import DiskError, naming_flag

    if html is not None:
        with naming_flag("--html"):
            return write_pages(paths, measured, html)
    try:
        return write_pages(paths, measured, None)
    except WorkError as error:
        kept = "neither the page nor the numbers were kept" if isinstance(error, DiskError) else "no page"
        print(f"{PROGRAM} report: {kept}: {error}; --html FILE writes a page elsewhere", file=sys.stderr)
        return []
