"""A request for a report carried out: names to paths, measuring here or on Slurm, summary.json into runs."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from harness.analysis.job.partial_merge import MOST_DETAILED
from harness.analysis.summary import Problem, Summary, Window, problem_texts
from harness.common.errors import RequestError, WorkError
from harness.common.paths import PROGRAM, PYTHON_PATH, expanded
from harness.measure.jobs import summarise
from harness.measure.operations import measure_timelines, split_timelines
from harness.measure.page_data import MOST_TRACKS, PageData, page_data_of
from harness.measure.partial_merge import is_many, measure_merge, summarise_partial_merge
from harness.measure.paths import MeasuredFiles, is_run, look_for_traces, measure_files, run_directories
from harness.measure.run_contents import with_problems
from harness.measure.several_jobs import refuse_several_jobs
from harness.run import Run, find_run, write_atomically
from harness.traces.progress import OnProgress, Progress

if TYPE_CHECKING:
    from harness.measure.slurm_array import Array, ArrayJob, Executor

DEFAULT_TASKS = 16
MOST_NAMED = 5
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Request:
    """What to report on. `slurm`: sbatch's options for the job array, None to measure here.

    `resume`: the folder that such an array left, to measure only what has no result yet.
    `page`: keep the columns that a page draws, so that no trace is read again; of `ranks` (None: few) the whole track.
    """

    tokens: list[str]
    window: str = Window.STEPS.value
    hta: bool = False
    workers: int | None = None
    slurm: dict[str, str] | None = None
    resume: Path | None = None
    page: bool = False
    ranks: frozenset[int] | None = None


class Measurement(NamedTuple):
    """The summaries of a request, and the columns that their pages draw."""

    summaries: list[Summary]
    page_data: list[PageData]


def measure_request(request: Request) -> Measurement:
    """Carry out a request. The summary of a run is also written into its directory.

    Raises:
        RequestError: a name is neither a path nor a run, or the paths hold no trace.
        WorkError: nothing could be measured.
    """
    paths = [resolve_path(token) for token in request.tokens]
    with Progress("looking for traces") as progress:
        files, left_out = look_for_traces(paths, progress.say)
    if not files and not run_directories(paths):
        where = ", ".join(map(str, paths))
        raise RequestError(
            "\n".join(
                [
                    f"no trace was found in {where}: give a run, a trace file or a folder of them",
                    *(f"not searched: {each.evidence}" for each in left_out[:MOST_NAMED]),
                ]
            )
        )
    for path in paths:
        refuse_several_jobs(path, files)
    window = Window(request.window)
    page_data: list[PageData] = []
    timelines, files = split_timelines(files)
    with Progress("reading timelines") as progress:
        of_timelines, broken = measure_timelines(timelines, progress)
    if of_timelines and not files and not run_directories(paths):
        summaries = [with_problems(summary, [*left_out, *broken]) for summary in of_timelines]
        return Measurement(summaries, [])
    left_out = [*left_out, *broken]
    if is_many(files):
        summaries = _many(files, window, request, left_out, run_directories(paths))
    else:
        read = _here(files, window, request) if request.slurm is None else _on_slurm(files, window, request)
        summaries = summarise(read.parts, [*left_out, *read.broken], run_directories(paths))
        page_data = read.page_data
    if window is Window.STEPS and len(paths) == 1 and len(summaries) == 1:
        _keep(paths[0], summaries[0])
    return Measurement([*of_timelines, *summaries], page_data)


def resolve_path(token: str) -> Path:
    """The path, if it exists, else the directory of the run with that name."""
    path = expanded(token)
    return path if path.exists() else find_run(token).path


def _here(files: list[Path], window: Window, request: Request) -> MeasuredFiles:
    ranks = request.ranks
    if ranks is None and len(files) > MOST_TRACKS:
        ranks = frozenset()
    keep = partial(page_data_of, ranks=ranks) if request.page else None
    with Progress("reading traces") as progress:
        return measure_files(files, window, request.workers, progress, hta=request.hta, page_data_of=keep)


def _many(
    files: list[Path], window: Window, request: Request, left_out: list[Problem], runs: list[Path]
) -> list[Summary]:
    """As a tree: no process holds the parts of all. Nothing is kept for a page, which reads the ranks that it draws."""
    if request.hta:
        raise RequestError(
            f"--hta-compatible with {len(files)} traces: at most {MOST_DETAILED} are counted as HTA does"
        )
    if request.slurm is not None:
        from harness.measure.merge_array import merge_distributed

        merge, lost = _by_array(files, window, request, merge_distributed)
        return summarise_partial_merge(merge, [*left_out, *lost], runs)
    with Progress("reading traces", unit="traces read") as progress:
        merge = measure_merge(files, window, request.workers, progress)
    return summarise_partial_merge(merge, left_out, runs)


def _on_slurm(files: list[Path], window: Window, request: Request) -> MeasuredFiles:
    if request.hta:
        raise RequestError(
            "--hta-compatible with --executor slurm: HTA's numbers are measured only on this machine"
        )
    from harness.measure.slurm_array import measure_distributed

    return MeasuredFiles(*_by_array(files, window, request, measure_distributed), [])


def _by_array(
    files: list[Path],
    window: Window,
    request: Request,
    measure: Callable[[list[Path], Window, Array, OnProgress], tuple[Measured, list[Problem]]],
) -> tuple[Measured, list[Problem]]:
    """Measure by a job array. Its folder stays only if a task failed, or Ctrl-C ended the waiting, with what the tasks
    measured, and their logs."""
    missing = next((command for command in ("sbatch", "srun") if shutil.which(command) is None), None)
    if missing is not None:
        raise RequestError(
            f"--executor slurm: no {missing} is on PATH; without this flag the traces are measured on this machine"
        )
    from harness.measure import slurm_array
    from harness.measure.array_plan import PLAN, read_plan
    from harness.site.slurm_commands import JobId, in_queue

    if request.resume is not None:
        read_plan(request.resume)
    folder = request.resume or Path(
        tempfile.mkdtemp(prefix="report-", dir=Path.cwd())
    )  # the tasks must see it
    options = request.slurm or {}
    array = slurm_array.Array(
        _executor(folder, options),
        request.workers or DEFAULT_TASKS,
        folder,
        lambda task: in_queue(JobId(task.job_id)),
        lambda jobs: _executor(folder, options | {"dependency": _when_ended(jobs)}),
    )
    try:
        with Progress("measuring on Slurm", unit="tasks done") as progress:
            measured, broken = measure(files, window, array, progress)
    except WorkError:
        if request.resume is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        if (folder / PLAN).exists():
            _say_resume(folder, "the array's tasks may continue (squeue --me); their results and logs")
        else:  # nothing was submitted
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if any(f.what == problem_texts.NOT_MEASURED for f in broken):
        _say_resume(folder, "the failed tasks' logs and the results of the other tasks")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return measured, broken


def _when_ended(jobs: Sequence[ArrayJob]) -> str:
    """sbatch's condition that every task of the jobs has ended, well or not."""
    return "afterany:" + ":".join(dict.fromkeys(job.job_id.partition("_")[0] for job in jobs))


def _say_resume(folder: Path, what: str) -> None:
    """The folder that an array leaves, and how to go on with it."""
    print(
        f"{PROGRAM} report: {what} are in {folder}; to measure only the missing traces, run the same command with "
        f"--resume {shlex.quote(str(folder))}",
        file=sys.stderr,
    )


def _executor(folder: Path, parameters: dict[str, str]) -> Executor:
    """submitit's executor, with these options of sbatch; its tasks find this checkout, wherever they start."""
    import submitit

    # It warns on stdout, in the middle of --json, each time sacct fails: always, where a cluster keeps no accounts.
    logging.getLogger("submitit").setLevel(logging.ERROR)

    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        name="harness-report",
        timeout_min=30,
        cpus_per_task=1,
        slurm_setup=[f"export PYTHONPATH={shlex.quote(str(PYTHON_PATH))}${{PYTHONPATH:+:$PYTHONPATH}}"],
        slurm_additional_parameters=parameters,
    )
    return cast("Executor", executor)


def _keep(path: Path, summary: Summary) -> None:
    """Write summary.json into a run; not into other folders, nor on a read-only disk."""
    if is_run(path):
        with suppress(WorkError):
            write_atomically(Run(path).summary, summary.model_dump_json(indent=1) + "\n")
