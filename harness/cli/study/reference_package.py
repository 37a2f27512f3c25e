"""`slurm.sh reference package`: an archive of a reference that opens offline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import JsonOption


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the reference")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.tar.gz", help="the archive")],
    no_traces: Annotated[
        bool, typer.Option("--no-traces", help="only reports and numbers: far smaller")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Make the archive that students copy: reports, traces, and a page of all variants with their lessons."""
    from harness.common.paths import expanded
    from harness.format.format import amount
    from harness.measure.references import reference_folder
    from harness.study.reference.package import plan_package, refuse_output, write_package
    from harness.traces.progress import Progress

    file = expanded(str(output))
    refuse_output(file)
    folder = reference_folder(name)
    _write_missing_pages(folder)
    package = plan_package(folder, with_traces=not no_traces)
    with Progress("packing") as progress:
        write_package(package, file, progress)
    if as_json:
        entries = {entry.path: entry.size_bytes for entry in package.entries}
        shown = {"file": str(file), "size_bytes": file.stat().st_size, "entries": entries}
        print(json.dumps(shown | {"without_report": package.without_report}, indent=1))
        return 0
    for variant in package.without_report:
        print(
            f"{variant}: without a report: its run is not on this machine, or it left no traces",
            file=sys.stderr,
        )
    print(f"{file}: {len(package.entries)} files, {amount(file.stat().st_size)}")
    print(f"to open it: tar xzf {file.name}, then {package.reference.name}/index.html in any browser")
    return 0


def _write_missing_pages(folder: Path) -> None:
    """A report for each run on this machine that has none: its page is written with its traces read once."""
    from harness.cli.watch.follow import write_report
    from harness.study.reference.package import runs_of

    for runs in runs_of(folder).values():
        for run in runs:
            if run is not None and not run.page.is_file():
                write_report(run)
