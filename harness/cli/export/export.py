"""`slurm.sh export`: a run or any traces as a file for another program: find the traces, choose the place, write."""

from __future__ import annotations

import json
import os
import socket
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.cli.options import JsonOption, run_names
from harness.cli.read import report
from harness.common.display.printable import printable
from harness.common.display.text import how_many
from harness.common.errors import HarnessError, RequestError
from harness.common.paths import CONFIGS, PROGRAM, expanded
from harness.common.run_folder.run_files import METRICS
from harness.common.system.users import this_user
from harness.export import nsys2prv
from harness.export.file_names import AS_GIVEN, PARAVER, PERFETTO, Suffixes, prefix_for, refuse_taken
from harness.export.paraver import compress as compress_paraver
from harness.export.paraver import write_paraver
from harness.export.perfetto import write_perfetto
from harness.export.perfetto_page import HOST, PORT, PerfettoServer
from harness.monitor.samples import NodeSamples, find, read
from harness.monitor.source import MonitorError
from harness.run import Run, find_run
from harness.run.record import FINAL
from harness.traces.find import search
from harness.traces.many import map_traces
from harness.traces.progress import ProgressLine

if TYPE_CHECKING:
    from harness.launch.argv import Word
    from harness.traces.trace import Trace
TokensArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|PATH",
        autocompletion=run_names,
        help="a run (job id, name, path, last), or trace files and folders",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="PREFIX", help="prefix of the files [beside the run's traces, or here]"),
]


ParaverEngine = Literal["auto", "nsys2prv", "own"]


@dataclass(frozen=True)
class ExportSources:
    """What to export: trace files, their run where they are of one run, and the nsys reports or exports among them."""

    traces: list[Path]
    run: Run | None
    reports: list[Path]

    def hosts(self) -> dict[int, str]:
        """Node name by rank, as the training wrote it down; a Kineto trace does not name its node."""
        # A file that cannot be read has no lines: then a rank's node has no name, as in a trace from elsewhere.
        return {
            line["rank"]: line["host"]
            for file in (self.run.metrics() if self.run else [])
            for line in METRICS.known_objects(file)
            if line.get("event") == "start" and isinstance(line.get("rank"), int) and isinstance(line.get("host"), str)
        }

    def folder(self) -> Path:
        """Where the result goes without `--out`."""
        return self.traces[0].parent if self.run else Path.cwd()

    def open(self) -> list[Trace]:
        """All traces, read. Raises TraceError: for the first that cannot be read."""
        with ProgressLine("reading traces") as progress:
            # Here, not in worker processes: a whole trace would travel back from them.
            read = map_traces(self.traces, lambda trace: trace, workers=1, progress=progress)
        for failed in (each for each in read if isinstance(each, HarnessError)):
            raise failed
        return [each for each in read if not isinstance(each, HarnessError)]


def sources(tokens: list[str]) -> ExportSources:
    """The traces that the command line names. Raises RequestError: a token names nothing, or there is no trace."""
    run: Run | None = None
    places: list[Path] = []
    for token in tokens:
        path = expanded(token)
        if path.exists() and not Run(path).is_run:
            places.append(path)
        else:
            run = find_run(token)
            kept = run.traces()
            places += [path for path in kept if path.suffix == ".gz"] or sorted({path.parent for path in kept})
    with ProgressLine("looking for traces") as progress:
        traces, left_out = search(places, progress.say)
    for each in left_out:
        print(f"{PROGRAM}: not searched for traces: {each}", file=sys.stderr)
    if not traces:
        raise RequestError(f"{', '.join(tokens)}: there is no trace (.json.gz, .sqlite, .nsys-rep, .db) in it")
    return ExportSources(
        traces,
        run=run if len(tokens) == 1 else None,
        reports=[path for path in traces if path.name.endswith((".sqlite", ".nsys-rep"))],
    )


def paraver(
    tokens: TokensArgument,
    *,
    out: OutOption = None,
    engine: Annotated[
        ParaverEngine, typer.Option(help="auto: nsys2prv for nsys reports if it is installed, else the harness's own")
    ] = "auto",
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            metavar="A,B,…",
            help="the event types that nsys2prv translates (its -t); its own --help names them",
        ),
    ] = None,
    container: Annotated[
        Path | None, typer.Option("--container", metavar="IMAGE", help="the image that holds nsys2prv and nsys")
    ] = None,
    container_command: Annotated[str, typer.Option(help="singularity or apptainer")] = "singularity",
    filter_nvtx: Annotated[
        str | None,
        typer.Option(
            "-f", "--filter-nvtx", metavar="RANGE", help="only CUDA calls in the first such range (nsys2prv 0.5)"
        ),
    ] = None,
    compress: Annotated[bool, typer.Option("-z", "--compress", help="write .prv.gz, which Paraver opens too")] = False,
    submit: Annotated[
        bool, typer.Option("--submit", help="convert in a CPU job after the run's end, without GPUs")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """A Paraver trace (.prv .pcf .row) of a run or of any traces."""
    image = (container_command, container) if container else None
    options = nsys2prv.Options(tuple(types.split(",")) if types else (), filter_nvtx, image)
    its_own = [name for name, value in {"--types": types, nsys2prv.FILTER: filter_nvtx}.items() if value]
    if its_own and engine == "own":
        flags = " and ".join(its_own)
        raise RequestError(
            f"{flags}: only nsys2prv can do that, and it is not used with --engine own: leave {flags} out"
        )
    if its_own and image is None and nsys2prv.installed():
        options.types_for(nsys2prv.help_of(options))  # before a job waits in the queue
    if out is not None:
        refuse_taken(out, PARAVER)
    if submit:
        given = {
            "--engine": engine,
            "--out": out.absolute() if out else None,
            "--types": types,
            "--container": container.absolute() if container else None,
            "--container-command": container_command if container else None,
            "--filter-nvtx": filter_nvtx,
        }
        words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return _paraver_submitted(tokens, [*words, *["--compress"] * compress], as_json)
    found = sources(tokens)
    prefix, notes = prefix_for(out, found.folder(), PARAVER)
    automatic = _chosen(engine, found, image, its_own)
    if engine == "nsys2prv" or automatic:
        try:
            notes += nsys2prv.convert(found.reports, prefix, options)
            prv = prefix.with_name(f"{prefix.name}.prv")
            made: dict[str, Any] = {"engine": "nsys2prv", "prv": str(prv), "megabytes": _megabytes(prv)}
            return _print(as_json, made, notes, compress)
        except HarnessError as error:
            if not automatic or its_own:
                raise
            notes.append(f"nsys2prv was tried first: {error}")
    done = write_paraver(found.open(), prefix, found.hosts())
    made = {
        "engine": "own",
        "prv": str(done.prv),
        "tasks": done.tasks,
        "threads": done.threads,
        "nodes": done.nodes,
        "records": done.records,
        "duration_ns": done.end_ns,
    }
    return _print(as_json, made, notes + done.notes, compress)


def _chosen(
    engine: ParaverEngine, export_sources: ExportSources, image: tuple[str, Path] | None, of_nsys2prv: Sequence[str]
) -> bool:
    """Whether `auto` means nsys2prv here. of_nsys2prv: the flags that only it knows."""
    only_nsys = len(export_sources.reports) == len(export_sources.traces)
    if engine == "nsys2prv" and not only_nsys:
        raise RequestError("--engine nsys2prv: reads nsys reports only; use --engine own for these traces")
    automatic = engine == "auto" and only_nsys and (image is not None or nsys2prv.installed())
    if of_nsys2prv and engine != "nsys2prv" and not automatic:
        why = "reads nsys reports only" if not only_nsys else "is not installed here (pip install nsys2prv)"
        flags = " and ".join(of_nsys2prv)
        raise RequestError(f"{flags}: only nsys2prv can do that, and it {why}: leave {flags} out")
    return automatic


def _paraver_submitted(tokens: list[str], options: list[str], as_json: bool) -> int:
    from harness.cli.launch.untrusted import not_ours, source_of
    from harness.launch.backends.registry import backend_of_run
    from harness.launch.job import python_of
    from harness.launch.poll import state_of
    from harness.launch.submit import this_machine

    run = find_run(tokens[0])
    if len(tokens) != 1:
        raise RequestError(f"--submit: got {len(tokens)} names, takes one run that was submitted to Slurm")
    if why := not_ours(source_of(run, run.record)):
        raise RequestError(
            f"--submit takes the job's sbatch options from {run.record_file}: {why}: convert it here, without --submit"
        )
    python = python_of(run.record.site, this_machine())
    argv: list[Word] = [python, "-m", "harness", "export", "paraver", str(run.path), *options]
    job_id = backend_of_run(run).submit_after(run, argv, state_of(run) in FINAL)
    output = run.log_after(job_id)
    if as_json:
        print(json.dumps({"job_id": job_id, "after": run.job_id, "output": str(output)}))
    else:
        print(f"submitted {job_id}: it converts {run.name} when that run has ended; its output is in {output}")
    return 0


def perfetto(
    tokens: TokensArgument,
    *,
    out: OutOption = None,
    open_it: Annotated[
        bool, typer.Option("--open", help="open it there: the browser reads it from this machine, for one minute")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """One Perfetto trace of all ranks, with the monitor's counters: open it at ui.perfetto.dev."""
    # Not .json.gz unless asked for: the next command must not take the result for the trace of one more rank.
    suffixes = AS_GIVEN if out is not None and out.name.endswith(".gz") else PERFETTO
    if out is not None:
        refuse_taken(out, suffixes)
    found = sources(tokens)
    if not open_it:
        return _print(as_json, *_perfetto_written(found, out, suffixes))
    with PerfettoServer() as server:
        made, notes = _perfetto_written(found, out, suffixes)
        _print(as_json, made | {"link": server.link(Path(made["perfetto"]))}, notes)
        server.serve()
    print("the browser has the whole trace", file=sys.stderr)
    return 0


def _perfetto_written(found: ExportSources, out: Path | None, suffixes: Suffixes) -> tuple[dict[str, Any], list[str]]:
    """Write it; returns what was made, and notes."""
    prefix, notes = prefix_for(out, found.folder(), suffixes)
    recordings: list[NodeSamples] = []
    for folder in (folder for monitor in (found.run.monitors() if found.run else []) for folder in find(monitor)):
        try:
            recordings.append(read(folder))
        except MonitorError as error:
            notes.append(f"without the monitor's counters: {error}")
    done = write_perfetto(found.open(), prefix.with_name(prefix.name + suffixes[0]), found.hosts(), recordings)
    made = {"perfetto": str(done.path), "tasks": done.tasks, "events": done.events, "megabytes": _megabytes(done.path)}
    return made, notes + done.notes


def _megabytes(path: Path) -> float:
    return round(path.stat().st_size / 1e6, 2)


def _print(as_json: bool, made: dict[str, Any], notes: list[str], gzip: bool = False) -> int:
    """Print what was written. made: begins with the file or the engine. gzip: of a .prv, to be compressed first."""
    if gzip:
        made["prv"] = str(compress_paraver(Path(made["prv"])))
    if as_json:
        print(json.dumps(made | {"notes": notes}, indent=1), flush=True)
        return 0
    path = made.pop("prv", None) or made.pop("perfetto")
    counted = [how_many(made[f"{what}s"], what) for what in ("task", "thread", "record", "event") if f"{what}s" in made]
    by = [f"{made['engine']} engine"] if "engine" in made else []
    print(f"{path}\n  {', '.join([*by, *counted])}")
    for note in notes:
        print(f"  note: {note}")
    if path.endswith((".prv", ".prv.gz")):
        print(f"  views to open with it: {CONFIGS / 'paraver'}/*.cfg")
    elif "link" in made:
        print(_offered(made["link"]), flush=True)
    else:
        print("  open it at https://ui.perfetto.dev or in chrome://tracing")
    return 0


def _offered(link: str) -> str:
    """Open the link where there is a display, else say how a browser elsewhere reaches this machine."""
    if {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ} and webbrowser.open(link):
        how = f"opened in your browser: {link}"
    else:
        how = (
            f"open within one minute, in Chrome or Firefox: {link}\n"
            "  if the browser is on another machine, first type there: "
            f"ssh -L {PORT}:{HOST}:{PORT} {this_user()}@{socket.getfqdn()}"
        )
    return (
        f"  {how}\n"
        "  the browser reads the file from this machine, nothing is uploaded; if it asks, allow the local network"
    )


def numbers(
    paths: report.PathsArgument,
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="folder; default: in the run's folder, or here")
    ] = None,
    window: report.WindowOption = "steps",
    workers: report.WorkersOption = None,
) -> None:
    """Every table of the report as CSV, of a run or of any traces."""
    from harness.measure.request import ReportRequest, measure_request
    from harness.report.page.write import run_among
    from harness.report.tables.catalogue import write_tables

    measured = measure_request(ReportRequest(paths, window=window, workers=workers))
    run = run_among(paths)
    place = out or (run.path if run else Path()) / "csv"
    write_tables(measured.summaries, place)
    print(printable(str(place)))
