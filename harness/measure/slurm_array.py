"""Traces measured by the tasks of job arrays. The folder of an array keeps which task measures which files, and what
each task left, so that an array can be gone on with."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import submitit
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.analysis.summary import Problem, RecordingVerdict, Window
from harness.analysis.summary.problem_texts import NOT_MEASURED
from harness.common.errors import RequestError, WorkError
from harness.common.system.bounded_read import read_bounded_json, why_unread
from harness.measure.partial_merge import (
    PartialMerge,
    files_of,
    join_partial_merges,
    measure_merge,
    read_merge,
    write_merge,
)
from harness.measure.paths import measure_files
from harness.run import write_atomically
from harness.traces.progress import OnProgress, silent

PLAN = "plan.json"
_MOST_BYTES = 256 << 20  # the paths of a million files
POLL_S = 0.5
GRACE_S = 30.0  # a shared file system may show a result this much later than the queue forgets its task
FAN_IN = 8  # partial merges that one task joins


class ArrayPlan(BaseModel):
    """The files of each task: paths, sizes in bytes, times of change in nanoseconds."""

    model_config = ConfigDict(extra="forbid", defer_build=True)
    window: Window
    files: list[list[tuple[str, int, int]]]


def planned(folder: Path, files: Sequence[Path], window: Window, tasks: int) -> list[list[Path]]:
    """The files of each task by the plan that the folder has, or by a new one, which it then has.

    Raises:
        RequestError: the plan there is of other files or another window, or they have changed since.
        WorkError: the folder cannot be written.
    """
    now = {file: (str(file), *_stamp(file)) for file in files}
    if not (folder / PLAN).exists():
        chunks = chunk(files, tasks)
        plan = ArrayPlan(window=window, files=[[now[file] for file in each] for each in chunks])
        write_atomically(folder / PLAN, plan.model_dump_json())
        return chunks
    plan = read_plan(folder)
    if plan.window != window or {*now.values()} != {file for chunk in plan.files for file in chunk}:
        raise RequestError(
            f"--resume {folder}: that array measured other traces or another --window, or they have changed since: "
            "leave --resume out to measure all of them"
        )
    return [[Path(path) for path, *_ in each] for each in plan.files]


def read_plan(folder: Path) -> ArrayPlan:
    """The plan that the folder has. Raises RequestError: it is not the folder of a job array."""
    try:
        return ArrayPlan.model_validate(read_bounded_json(folder / PLAN, _MOST_BYTES))
    except (OSError, ValueError) as error:
        why = "is no plan" if isinstance(error, ValidationError) else why_unread(error)
        raise RequestError(f"--resume {folder}: is not the folder of a report's job array: its {PLAN}: {why}") from None


def chunk(files: Sequence[Path], tasks: int) -> list[list[Path]]:
    """At most `tasks` non-empty chunks of about equal bytes: the largest files are dealt first."""
    size = {file: max(_stamp(file)[0], 0) for file in files}
    chunks: list[list[Path]] = [[] for _ in range(max(1, min(tasks, len(files))))]
    lightest = [(0, number) for number in range(len(chunks))]  # a heap
    for file in sorted(files, key=lambda f: (-size[f], str(f))):
        weight, number = lightest[0]
        chunks[number].append(file)
        heapq.heapreplace(lightest, (weight + size[file] + 1, number))
    return [c for c in chunks if c]


def _stamp(file: Path) -> tuple[int, int]:
    """Its size in bytes, and when it was changed, in nanoseconds; -1 where it is gone."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


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
class TaskArray:
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


@dataclass(frozen=True)
class _Node:
    """One task: what it leaves, of how many traces, and the partial merges that it joins; none: it measures."""

    output: Path
    files: int
    inputs: tuple[Path, ...] = ()


def measure_distributed(
    files: Sequence[Path], window: Window, array: TaskArray, progress: OnProgress = silent, *, reduced: bool = False
) -> tuple[PartialMerge, list[Problem]]:
    """As paths.measure_files, by the tasks of job arrays, or if `reduced` as partial_merge.measure_merge; and a problem
    for each file of a task that failed.

    A folder that has a plan already goes on with it: what a task left whole is not done again, but a join that lacked
    a partial merge is. If a joining task fails, its inputs are joined here. `progress` gets the number of finished
    tasks.

    Raises:
        RequestError: the folder's plan is of other files or another window, or they have changed since.
        WorkError: nothing was submitted, or the folder cannot be written.
    """
    array.folder.mkdir(parents=True, exist_ok=True)
    chunks = planned(array.folder, [file.absolute() for file in files], window, array.tasks)
    joins = reduced and array.after is not None
    levels = _levels(array.folder.absolute(), [len(chunk) for chunk in chunks], joins)
    missing = [[node for node in level if not _is_whole(node)] for level in levels]
    leaves = dict(zip((node.output for node in levels[0]), chunks, strict=True))
    tasks = [(leaves[node.output], window.value, node.output, reduced) for node in missing[0]]
    jobs = [submit(array.executor, measure_leaf, tasks)]
    for level in missing[1:]:
        executor = array.after(jobs[-1]) if array.after and jobs[-1] else array.executor
        jobs.append(submit(executor, join_files, [(node.inputs, node.output) for node in level]))
    every = [node.output for level in levels for node in level]
    problems: list[Problem] = []
    for node, job in ((node, job) for pair in zip(missing, jobs, strict=True) for node, job in zip(*pair, strict=True)):
        failure = wait(job, node.output, array.in_queue, lambda: progress(sum(map(Path.exists, every)), len(every)))
        if failure and node.inputs:
            join_files(node.inputs, node.output)
        elif failure:
            evidence = [f"{file}: {failure}" for file in leaves[node.output]]
            problems += [Problem(severity=RecordingVerdict.UNUSABLE, what=NOT_MEASURED, evidence=of) for of in evidence]
    return join_partial_merges([read_merge(node.output) for node in levels[-1] if node.output.exists()]), problems


def _levels(folder: Path, leaves: Sequence[int], joins: bool) -> list[list[_Node]]:
    """The tree, the leaves first. leaves: how many traces each measures."""
    levels = [[_Node(folder / f"merge-0-{i}.part", count) for i, count in enumerate(leaves)]]
    while joins and len(levels[-1]) > FAN_IN:
        below = levels[-1]
        groups = [below[at : at + FAN_IN] for at in range(0, len(below), FAN_IN)]
        names = [folder / f"merge-{len(levels)}-{i}.part" for i in range(len(groups))]
        levels.append(
            [
                _Node(name, sum(node.files for node in each), tuple(node.output for node in each))
                for name, each in zip(names, groups, strict=True)
            ]
        )
    return levels


def _is_whole(node: _Node) -> bool:
    """Whether its partial merge is there, of all its traces. One that is not is made again."""
    try:
        if files_of(node.output) == node.files:
            return True
    except WorkError:
        pass
    node.output.unlink(missing_ok=True)
    return False


def measure_leaf(files: Sequence[Path], window: str, output: Path, reduced: bool) -> None:
    """The work of a task of the first array: measure its files, leave a partial merge."""
    if reduced:
        merge = measure_merge(files, Window(window))
    else:
        read = measure_files(files, Window(window))
        merge = PartialMerge(loose=read.parts, broken=read.broken, files=len(files))
    write_merge(output, merge)


def join_files(inputs: Sequence[Path], output: Path) -> None:
    """The work of a task of a further array: join the partial merges that exist."""
    until = time.monotonic() + GRACE_S
    while not all(path.exists() for path in inputs) and time.monotonic() < until:
        time.sleep(POLL_S)
    write_merge(output, join_partial_merges([read_merge(path) for path in inputs if path.exists()]))


def submit(executor: Executor, work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> Sequence[ArrayJob]:
    """A task of `work` for each tuple of arguments. Raises WorkError: nothing was submitted."""
    if not tasks:
        return []
    try:
        return executor.map_array(work, *zip(*tasks, strict=True))
    except FileNotFoundError as error:
        raise WorkError(f"--executor slurm: {error.filename} is not on PATH: log in to the cluster") from None
    except submitit.core.utils.FailedJobError as error:
        raise WorkError(f"--executor slurm: the job array was not submitted: {_last_line(error)}") from None


def wait(
    job: ArrayJob, output: Path, in_queue: Callable[[ArrayJob], bool], show_progress: Callable[[], None]
) -> str | None:
    """None once the task's partial result is there, else the reason why it will not come, in one line."""
    gone_since: float | None = None
    while not output.exists():
        show_progress()
        if job.done():
            return _failure(job) if not output.exists() else None
        gone_since = None if in_queue(job) else gone_since or time.monotonic()
        if gone_since is not None and time.monotonic() - gone_since > GRACE_S:
            return f"task {job.job_id} left the queue without a result"
        time.sleep(POLL_S)
    return None


def _failure(job: ArrayJob) -> str:
    try:
        job.result()
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
        return _last_line(error)
    return f"task {job.job_id} ended without a result"


def _last_line(exception: Exception) -> str:
    lines = [line.strip() for line in str(exception).splitlines() if line.strip()]
    return lines[-1] if lines else type(exception).__name__
