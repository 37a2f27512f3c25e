"""Which task of a job array measures which files. The array's folder keeps it: so an array can be gone on with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import submitit
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.analysis.process.part import RankPart, merge_parts
from harness.analysis.summary import Problem, RecordingVerdict, Window, problem_texts
from harness.common.bounded_read import read_bounded_json, why_unread
from harness.common.errors import RequestError, WorkError
from harness.measure.paths import measure_files
from harness.run import write_atomically
from harness.traces.progress import OnProgress, silent

PLAN = "plan.json"
_MOST_BYTES = 256 << 20  # the paths of a million files


class ArrayPlan(BaseModel):
    """The files of each task: paths, sizes in bytes, times of change in nanoseconds."""

    model_config = ConfigDict(extra="forbid")
    window: Window
    files: list[list[tuple[str, int, int]]]

    @classmethod
    def of(cls, chunks: Iterable[Iterable[Path]], window: Window) -> ArrayPlan:
        """The files as they are now."""
        return cls(window=window, files=[[(str(file), *_stamp(file)) for file in each] for each in chunks])

    @property
    def chunks(self) -> list[list[Path]]:
        """The paths of each task."""
        return [[Path(path) for path, *_ in each] for each in self.files]


def planned(folder: Path, files: Sequence[Path], window: Window, tasks: int) -> ArrayPlan:
    """The plan that the folder has, or a new one, which it then has.

    Raises:
        RequestError: the plan there is of other files or another window, or they have changed since.
        WorkError: the folder cannot be written.
    """
    if not (folder / PLAN).exists():
        plan = ArrayPlan.of(chunk(files, tasks), window)
        write_atomically(folder / PLAN, plan.model_dump_json())
        return plan
    plan = read_plan(folder)
    now = {(str(file), *_stamp(file)) for file in files}
    if plan.window != window or now != {file for chunk in plan.files for file in chunk}:
        raise RequestError(
            f"--resume {folder}: that array measured other traces or another --window, or they have changed since: "
            "leave --resume out to measure all of them"
        )
    return plan


def read_plan(folder: Path) -> ArrayPlan:
    """The plan that the folder has. Raises RequestError: it is not the folder of a job array."""
    try:
        return ArrayPlan.model_validate(read_bounded_json(folder / PLAN, _MOST_BYTES))
    except (OSError, ValueError) as error:
        why = "is no plan" if isinstance(error, ValidationError) else why_unread(error)
        raise RequestError(f"--resume {folder}: is not the folder of a report's job array: its {PLAN}: {why}") from None


def chunk(files: Sequence[Path], tasks: int) -> list[list[Path]]:
    """At most `tasks` non-empty chunks of about equal bytes: the largest files are dealt first."""
    count = max(1, min(tasks, len(files)))
    chunks: list[list[Path]] = [[] for _ in range(count)]
    weight = [0] * count
    size = {file: max(_stamp(file)[0], 0) for file in files}
    for file in sorted(files, key=lambda f: (-size[f], str(f))):
        lightest = min(range(count), key=lambda i: (weight[i], i))
        chunks[lightest].append(file)
        weight[lightest] += size[file] + 1
    return [c for c in chunks if c]


def _stamp(file: Path) -> tuple[int, int]:
    """Its size in bytes, and when it was changed, in nanoseconds; -1 where it is gone."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


POLL_S = 0.5
GRACE_S = 30.0  # a shared file system may show a result this much later than the queue forgets its task
MOST_PARTIAL_BYTES = 2 << 30  # of hundreds of ranks
_PARTS = TypeAdapter(list[RankPart])
_PROBLEMS = TypeAdapter(list[Problem])


class ArrayJob(Protocol):
    """One submitted task, as submitit has it."""

    @property
    def job_id(self) -> str: ...
    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Executor(Protocol):
    """The part of a submitit executor that is used here."""

    def map_array(self, fn: Any, *iterables: Any) -> Sequence[ArrayJob]: ...


@dataclass(frozen=True)
class Array:
    """Where the tasks run: the executor, the largest number of tasks, a folder that all of them see, and the queue.

    `in_queue` says whether a task still waits or runs. submitit does not know it where a cluster keeps no accounts:
    there it would wait without end for a cancelled task. `after` gives the executor for tasks that start when those of
    an earlier array have ended; None: there are no such tasks.
    """

    executor: Executor
    tasks: int
    folder: Path
    in_queue: Callable[[ArrayJob], bool] = lambda job: not job.done()
    after: Callable[[Sequence[ArrayJob]], Executor] | None = None


def measure_distributed(
    files: Sequence[Path], window: Window, array: Array, progress: OnProgress = silent
) -> tuple[list[RankPart], list[Problem]]:
    """As paths.measure_files, by the tasks of a job array. Partial results are left in the array's folder.

    A folder that has a plan already goes on with it: only what has no result yet is measured. Each file of a task
    that fails becomes a finding; the others count. `progress` gets the number of finished tasks.

    Raises:
        RequestError: the folder's plan is of other files or another window, or they have changed since.
        WorkError: nothing was submitted.
    """
    array.folder.mkdir(parents=True, exist_ok=True)
    plan = planned(array.folder, [file.absolute() for file in files], window, array.tasks)
    outputs = [array.folder.absolute() / f"partial-{i}.json" for i in range(len(plan.files))]
    missing = [i for i, output in enumerate(outputs) if not _is_whole(output)]
    chunks = plan.chunks
    tasks = [(chunks[i], window.value, outputs[i]) for i in missing]
    jobs = dict(zip(missing, submit(array.executor, measure_chunk, tasks), strict=True))
    parts: list[list[RankPart]] = []
    problems: list[Problem] = []

    def show_progress() -> None:
        progress(sum(output.exists() for output in outputs), len(outputs))

    for i, output in enumerate(outputs):
        failure = wait(jobs[i], output, array.in_queue, show_progress) if i in jobs else None
        if failure is None:
            own, broken = read_partial(output)
            parts.append(own)
            problems += broken
        else:
            problems += lost(chunks[i], failure)
    return merge_parts(*parts), problems


def _is_whole(partial: Path) -> bool:
    """Whether there is a partial result. One that cannot be read is made again."""
    try:
        read_partial(partial)
    except WorkError:
        partial.unlink(missing_ok=True)
        return False
    return True


def lost(files: Sequence[Path], failure: str) -> list[Problem]:
    """A finding for each file of a task that failed."""
    every = (f"{file}: {failure}" for file in files)
    return [
        Problem(severity=RecordingVerdict.UNUSABLE, what=problem_texts.NOT_MEASURED, evidence=evidence)
        for evidence in every
    ]


def submit(executor: Executor, work: Callable[..., str], tasks: Sequence[tuple[Any, ...]]) -> Sequence[ArrayJob]:
    """A task of `work` for each tuple of arguments. Raises WorkError: nothing was submitted."""
    if not tasks:
        return []
    try:
        return executor.map_array(work, *zip(*tasks, strict=True))
    except FileNotFoundError as error:
        raise WorkError(f"--executor slurm: {error.filename} is not on PATH: log in to the cluster") from None
    except submitit.core.utils.FailedJobError as error:
        raise WorkError(f"--executor slurm: the job array was not submitted: {_last_line(error)}") from None


def measure_chunk(files: Sequence[Path], window: str, output: Path) -> str:
    """The work of one task: measure its files and write the partial result, atomically. Returns its path."""
    parts, problems, _ = measure_files(list(files), Window(window))
    content = {
        "parts": _PARTS.dump_python(parts, mode="json"),
        "problems": _PROBLEMS.dump_python(problems, mode="json"),
    }
    write_atomically(output, json.dumps(content))
    return str(output)


def read_partial(path: Path) -> tuple[list[RankPart], list[Problem]]:
    """A partial result. Raises WorkError: the file is missing or damaged."""
    try:
        content = read_bounded_json(path, MOST_PARTIAL_BYTES)
        return _PARTS.validate_python(content["parts"]), _PROBLEMS.validate_python(content["problems"])
    except (OSError, ValueError) as error:
        why = why_unread(error)
    except (KeyError, TypeError):
        why = "it lacks its parts"
    raise WorkError(f"{path}: is not a partial result of a report ({why})")


def wait(
    job: ArrayJob, output: Path, in_queue: Callable[[ArrayJob], bool], show_progress: Callable[[], None]
) -> str | None:
    """None once the task's partial result is there, else the reason why it will not come, in one line."""
    gone_since: float | None = None
    while not output.exists():
        show_progress()
        if job.done():
            return _failure(job) if not output.exists() else None
        if in_queue(job):
            gone_since = None
        else:
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > GRACE_S:
                return f"task {job.job_id} left the queue without a result"
        time.sleep(POLL_S)
    return None


def _failure(job: ArrayJob) -> str:
    try:
        job.result()
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
        return _last_line(error)
    return f"task {job.job_id} ended without a result"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
