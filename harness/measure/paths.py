"""Paths to traces, and traces to the parts of their processes: each file is read once, several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import Compressible, RankPart, compressed, in_order
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.process.steps import by_periodicity
from harness.analysis.process.view import ProcessView
from harness.analysis.summary import Problem, RecordingVerdict, Summary, Window, problem_texts
from harness.common.errors import RequestError
from harness.common.run_folder.run_files import LINES
from harness.measure.jobs import summarise
from harness.measure.page_data import PageData
from harness.replay.graph.process import process_graph
from harness.run import TRACE_FOLDERS, Run
from harness.traces import Trace, TraceError, map_traces
from harness.traces.duplicates import duplicates
from harness.traces.find import Say, search
from harness.traces.progress import OnProgress, silent
from harness.traces.sampled_lines import SampledLines, read_about, read_sampled_lines

_MOST_UNCOMPRESSED = 16  # traces of which one process holds the parts as they are
AROUND_NS = 1_000_000_000  # before the first event of a trace and after its last


Condense = Callable[[MeasuredProcess], list[PageData]]


class MeasuredFiles(NamedTuple):
    """Parts of the files that were read, a finding for each file that was not, and what a page draws."""

    parts: list[RankPart]
    broken: list[Problem]
    page_data: list[PageData]


def measure_one(paths: Iterable[Path | str], window: Window | str = "steps") -> Summary:
    """The summary of one job: a run's directory, or trace files and folders that form one job.

    Raises:
        RequestError: the files belong to several jobs.
        WorkError: nothing can be read.
    """
    summaries = measure_jobs(paths, window)
    if len(summaries) != 1:
        raise RequestError(
            f"{len(summaries)} jobs were found where one was expected: "
            + ", ".join(s.sources[0].path for s in summaries[:4])
        )
    return summaries[0]


def measure_jobs(paths: Iterable[Path | str], window: Window | str = Window.STEPS) -> list[Summary]:
    """One summary per job found in `paths`."""
    wanted = [Path(p) for p in paths]
    files, left_out = look_for_traces(wanted)
    read = measure_files(files, Window(window))
    return summarise(read.parts, [*left_out, *read.broken], run_directories(wanted))


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Every trace of the runs, folders and files in `paths`, once."""
    return look_for_traces(paths)[0]


def look_for_traces(paths: Sequence[Path], say: Say = lambda text: None) -> tuple[list[Path], list[Problem]]:
    """As `trace_files`, and a finding for each folder that could not be searched, and of files that are there twice.
    say: called now and then with how far the search is."""
    files: list[Path] = []
    left_out: list[Problem] = []
    for path in paths:
        if is_run(path):
            files += Run(path).traces()
        else:
            found = search([path], say)
            files += found.files
            left_out += [Problem.doubt(problem_texts.FOLDER_CLOSED, why) for why in found.left_out]
    again = duplicates(file for file in dict.fromkeys(files) if run_of(file) is None)
    if again:
        file, first = next(iter(again.items()))
        more = f"; {len(again) - 1} more like it" if len(again) > 1 else ""
        beside = first.name if first.parent == file.parent else first
        said = f"{file.name} has the content of {beside}{more}"
        left_out.append(Problem.remark(problem_texts.DUPLICATES, said))
    return [file for file in dict.fromkeys(files) if file not in again], left_out


def is_run(path: Path) -> bool:
    """Whether a path is a run's directory, also one that lost its record."""
    return Run(path).looks_like_run


def run_directories(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if is_run(path)]


def measure_files(
    files: Sequence[Path],
    window: Window,
    workers: int | None = None,
    progress: OnProgress = silent,
    *,
    page_data_of: Condense | None = None,
) -> MeasuredFiles:
    """Read every file once, and again where a job's ranks leave out fewer first steps than one of them. page_data_of:
    what a page needs of a process."""
    compresses = len(files) > _MOST_UNCOMPRESSED
    reduce = partial(_measure_trace, window=window, page_data_of=page_data_of, compresses=compresses)
    outcomes = map_traces(files, reduce, workers=workers, progress=progress)
    for number, warmup in _warmup_elsewhere(files, outcomes).items():
        with_warmup = partial(reduce, least_warmup=warmup)
        outcomes[number : number + 1] = map_traces([files[number]], with_warmup, workers=workers)
    parts: list[RankPart] = []
    broken: list[Problem] = []
    page_data: list[PageData] = []
    for file, outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, TraceError):
            what = problem_texts.UNREADABLE
            broken.append(Problem(severity=RecordingVerdict.UNUSABLE, what=what, evidence=str(outcome)))
        else:
            parts += [part.model_copy(update={"run": run_of(file)}) for part in outcome[0]]
            page_data += outcome[1]
    return MeasuredFiles(in_order(parts), broken, page_data)


def _warmup_elsewhere(
    files: Sequence[Path], outcomes: Sequence[tuple[list[RankPart], list[PageData]] | TraceError]
) -> dict[int, int]:
    """The files whose processes count first steps that are warm-up on another rank, by their places, and how many are:
    of a job's ranks that recorded the same steps, all leave them out."""
    jobs: dict[tuple[object, ...], dict[int, int]] = {}
    for number, (file, outcome) in enumerate(zip(files, outcomes, strict=True)):
        for part in [] if isinstance(outcome, TraceError) else outcome[0]:
            steps = part.steps
            if steps.durations_ns and not by_periodicity(steps.source):
                recorded = steps.source, steps.found, steps.cut_off, steps.empty, steps.left_out
                job = jobs.setdefault((run_of(file) or file.parent, part.source.world_size, *recorded), {})
                job[number] = min(steps.warmup, job.get(number, steps.warmup))
    most = [(job, max(job.values())) for job in jobs.values()]
    return {number: warmup for job, warmup in most for number, own in job.items() if own < warmup}


def _measure_trace(
    trace: Trace, window: Window, page_data_of: Condense | None, *, compresses: bool, least_warmup: int = 0
) -> tuple[list[RankPart], list[PageData]]:
    parts: list[RankPart] = []
    page_data: list[PageData] = []
    for part, measured in measured_processes(trace, window, load_rules(), least_warmup):
        graph = process_graph(measured, lines_of(measured.view))
        whole = part.model_copy(update={"graph": Compressible(graph)})
        parts.append(compressed(whole) if compresses else whole)
        page_data += page_data_of(measured) if page_data_of else []
    return parts, page_data


def run_of(trace: Path) -> str | None:
    """The run directory of a trace; None for a trace outside of a run."""
    run = trace.parent.parent
    return str(run) if trace.parent.name in TRACE_FOLDERS and is_run(run) else None


def lines_of(view: ProcessView) -> SampledLines | None:
    """The lines of a process while it was recorded; None: they were not sampled, or its clock is not known."""
    path = _file_of(view)
    span = _recorded(view)
    if path is None or span is None or view.epoch_ns is None:
        return None
    found = read_sampled_lines(path, span[0] + view.epoch_ns - AROUND_NS, span[1] + view.epoch_ns + AROUND_NS)
    return None if found is None else found.since(view.epoch_ns)


def _file_of(view: ProcessView) -> Path | None:
    """By the rank, or where the trace does not know it by host and pid."""
    trace = Path(view.trace.identity.path)
    if trace.parent.name not in TRACE_FOLDERS:
        return None
    run = Run(trace.parent.parent)
    if view.rank is not None:
        path = LINES.path(run.path, view.rank)
        return path if path.is_file() else None
    if view.pid is None:
        return None
    host = view.trace.identity.host
    for path in run.lines():
        about = read_about(path)
        if about is not None and about.pid == view.pid and (host is None or about.host in (None, host)):
            return path
    return None


def _recorded(view: ProcessView) -> tuple[int, int] | None:
    parts = [part for part in (view.events, view.ranges, view.calls) if len(part)]
    if not parts:
        return None
    return min(int(part.start_ns.min()) for part in parts), max(int(part.end_ns.max()) for part in parts)
