"""`slurm.sh report`: parse, measure, print. Knows neither how a number is computed nor how it is shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli.options import JsonOption
from harness.common.errors import RequestError, WorkError, nearest
from harness.common.paths import PROGRAM
from harness.common.printable import printable

if TYPE_CHECKING:
    from harness.analysis.summary import Summary
    from harness.measure.request import Measurement

SBATCH_OPTIONS = (
    *("account", "comment", "constraint", "exclude", "gres", "licenses", "mem", "nice", "nodelist", "partition"),
    *("qos", "reservation", "time", "wckey"),
)
SBATCH_VALUE = re.compile(r"[\w.:,=*@%/\[\]&|+-]+", re.ASCII)


WindowChoice = Literal["steps", "gpu"]
ExecutorChoice = Literal["local", "slurm"]


def report(
    paths: Annotated[list[str], typer.Argument(metavar="RUN|PATH…", help="runs, trace files, or folders with traces")],
    *,
    full: Annotated[bool, typer.Option("--full", help="print every table, not only the answer")] = False,
    as_json: JsonOption = False,
    window: Annotated[
        WindowChoice, typer.Option("--window", help="the counted time: the profiled steps, or first to last GPU event")
    ] = "steps",
    hta_compatible: Annotated[
        bool, typer.Option("--hta-compatible", help="print the numbers of HolisticTraceAnalysis 0.5.0 instead")
    ] = False,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="DIR", help="also write every table as CSV")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="DIR", help="also write every table as Parquet")] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the page here (default for a run: report.html in its folder)"),
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="write no page")] = False,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="also write every plot as PNG, for slides")] = None,
    notebook: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE.ipynb]",
            help="also write a notebook that you can change (default: report.ipynb in the run's folder, or here)",
        ),
    ] = None,
    ranks: Annotated[str | None, typer.Option(metavar="0,3,…", help="ranks whose timeline the page shows")] = None,
    executor: Annotated[
        ExecutorChoice, typer.Option("--executor", help="read the traces on this machine, or in a Slurm job array")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="processes on this machine, or tasks of the job array")
    ] = None,
    slurm_option: Annotated[
        list[str] | None,
        typer.Option("--slurm", metavar="KEY=VALUE", help="an option of sbatch for the array: partition=…, account=…"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="continue a job array that lost tasks, from the folder that it left"),
    ] = None,
) -> None:
    """Show where the time went, in a run or in any traces. If the path holds several jobs, it lists them and reads
    none."""
    from harness.measure.request import Request, measure_request
    from harness.report.page.write import check_pages, run_among, write_pictures
    from harness.report.tables.catalogue import check_parquet, write_tables
    from harness.report.tables.terminal import render_hta

    # A run has a page only of the window that its summary is about.
    wanted = html is not None or (window == "steps" and not (no_html or hta_compatible))
    shown = _ranks(ranks)
    request = Request(
        tokens=paths,
        window=window,
        hta=hta_compatible,
        workers=workers,
        slurm=_of_sbatch(slurm_option or [], resume, executor),
        resume=resume,
        page=bool(png or html or (wanted and run_among(paths))),
        ranks=shown,
    )
    if parquet is not None:
        check_parquet()
    if notebook is not None:
        from harness.report.notebook import check_notebook

        if hta_compatible:
            raise RequestError(
                "--notebook with --hta-compatible: a notebook has our own numbers; leave one of them out"
            )
        check_notebook(notebook, paths)
    measured = measure_request(request)
    summaries = measured.summaries
    if wanted:
        check_pages(summaries, html, shown)
    if csv is not None:
        write_tables(summaries, csv)
    if parquet is not None:
        write_tables(summaries, parquet, parquet=True)
    if png is not None:
        write_pictures(paths, measured, png)
    written = _pages(paths, measured, html, shown) if wanted else []
    cells = _notebook(paths, summaries, window, notebook) if notebook is not None else ""
    if as_json:
        texts = [summary.model_dump_json(indent=1) for summary in summaries]
        print(texts[0] if len(texts) == 1 else "[" + ",\n".join(texts) + "]")
        return
    if hta_compatible:
        sys.stdout.write("\n".join(map(render_hta, summaries)))
    else:
        _show(paths, summaries, full, written)
    sys.stdout.write(cells)


def _show(paths: list[str], summaries: list[Summary], full: bool, pages: list[Path]) -> None:
    from harness.cli.command_line import columns, show
    from harness.measure.request import resolve_path
    from harness.report.compare.terminal import render_series
    from harness.report.exercise_0 import is_comm_run, render_comm
    from harness.report.first_screen import first_screen, whole_report
    from harness.report.tables.table import WIDTH
    from harness.report.tables.terminal import render_rest, render_section

    tests, width = [path for path in map(resolve_path, paths) if is_comm_run(path)], columns(WIDTH)
    if len(tests) == len(paths):
        told = [render_section(s, "nccl", width) for s in summaries if full or s.nccl is not None]
        show("\n".join([*map(render_comm, tests), *told]))
        if pages:
            show("\nThe page: " + printable(", ".join(map(str, pages))))
        return
    for number, s in enumerate(summaries):
        page = pages[number] if len(pages) == len(summaries) else next(iter(pages), None)
        show(first_screen(s, width, more="" if full else whole_report(paths, s), page=page))
        if full:
            show(f"\n{render_rest(s, width)}")
    if series := render_series(summaries, width):
        show(series)


def _pages(paths: list[str], measured: Measurement, html: Path | None, ranks: frozenset[int] | None) -> list[Path]:
    """Write the pages: where asked, else into the run. There, a full or read-only disk is only a warning."""
    from harness.report.page.write import write_pages
    from harness.run import DiskError, naming_flag

    if html is not None:
        with naming_flag("--html"):
            return write_pages(paths, measured, html, ranks)
    try:
        return write_pages(paths, measured, None, ranks)
    except WorkError as error:
        kept = "neither the page nor the numbers were kept" if isinstance(error, DiskError) else "no page"
        print(f"{PROGRAM} report: {kept}: {error}; --html FILE writes a page elsewhere", file=sys.stderr)
        return []


def _notebook(paths: list[str], summaries: list[Summary], window: WindowChoice, asked: str) -> str:
    """Write the notebook; returns what to say of it."""
    from harness.analysis.summary import Window
    from harness.report.notebook import write_notebook

    written = write_notebook(paths, summaries, Window(window), asked)
    said = f"The notebook: {printable(str(written.path))} (`jupyter lab` opens it)\n"
    if written.kept is not None:
        said += f"{printable(str(written.kept))} differs and is kept; --notebook FILE gives a name of your own\n"
    return said


def _ranks(text: str | None) -> frozenset[int] | None:
    try:
        return frozenset(int(number) for number in text.split(",")) if text else None
    except ValueError:
        raise RequestError(f"--ranks {text}: give numbers with commas between them, as in --ranks 0,3") from None


def _of_sbatch(options: list[str], resume: Path | None, executor: ExecutorChoice) -> dict[str, str] | None:
    """What sbatch is told of the array; None: everything is measured here."""
    if executor != "slurm":
        given = [f"--slurm {option}" for option in options] + [f"--resume {resume}"] * (resume is not None)
        if given:
            raise RequestError(f"{given[0]} is for a job array: add --executor slurm, or leave it out")
        return None
    told = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise RequestError(f"--slurm {option}: give KEY=VALUE, as in --slurm partition=debug")
        if key not in SBATCH_OPTIONS:
            near = nearest(key, SBATCH_OPTIONS)
            hint = f"did you mean {near}?" if near else f"it takes {', '.join(SBATCH_OPTIONS)}"
            raise RequestError(f"--slurm {option}: {hint}")
        if not SBATCH_VALUE.fullmatch(value):
            raise RequestError(
                f"--slurm {option}: the value of {key} is one word of letters, digits and . _ : , = * @ % / [ ] & | + -"
            )
        told[key] = value
    return told
