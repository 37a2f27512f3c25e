"""Traces measured by the tasks of job arrays, each of which leaves a file in the array's folder."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import submitit

from harness.analysis.summary import Problem, RecordingVerdict, Window
from harness.analysis.summary.problem_texts import NOT_MEASURED
from harness.common.errors import WorkError
from harness.measure.partial_merge import PartialMerge, join_partial_merges, measure_merge, read_merge, write_merge
from harness.measure.paths import measure_files
from harness.traces.progress import OnProgress, silent

POLL_S = 0.5
GRACE_S = 30.0  # a shared file system may show a result this much later than the queue forgets its task
FAN_IN = 8  # partial merges that one task joins


def chunk(files: Sequence[Path], tasks: int) -> list[list[Path]]:
    """At most `tasks` non-empty chunks of about equal bytes: the largest files are dealt first."""
    size = {file: _size(file) for file in files}
    chunks: list[list[Path]] = [[] for _ in range(max(1, min(tasks, len(files))))]
    lightest = [(0, number) for number in range(len(chunks))]  # a heap
    for file in sorted(files, key=lambda f: (-size[f], str(f))):
        weight, number = lightest[0]
        chunks[number].append(file)
        heapq.heapreplace(lightest, (weight + size[file] + 1, number))
    return [c for c in chunks if c]


def _size(file: Path) -> int:
    """In bytes; 0 where it is gone."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


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
    """One task: what it leaves, and the partial merges that it joins; none: it measures."""

    output: Path
    inputs: tuple[Path, ...] = ()


def measure_distributed(
    files: Sequence[Path], window: Window, array: TaskArray, progress: OnProgress = silent, *, reduced: bool = False
) -> tuple[PartialMerge, list[Problem]]:
    """As paths.measure_files, by the tasks of job arrays, or if `reduced` as partial_merge.measure_merge; and a problem
    for each file of a task that failed.

    If a joining task fails, its inputs are joined here. `progress` gets the number of finished tasks.

    Raises WorkError: nothing was submitted, or the folder cannot be written.
    """
    array.folder.mkdir(parents=True, exist_ok=True)
    chunks = chunk([file.absolute() for file in files], array.tasks)
    levels = _levels(array.folder.absolute(), len(chunks), reduced and array.after is not None)
    leaves = dict(zip((node.output for node in levels[0]), chunks, strict=True))
    jobs = [
        submit(array.executor, measure_leaf, [(of, window.value, output, reduced) for output, of in leaves.items()])
    ]
    for level in levels[1:]:
        executor = array.after(jobs[-1]) if array.after else array.executor
        jobs.append(submit(executor, join_files, [(node.inputs, node.output) for node in level]))
    every = [node.output for level in levels for node in level]
    problems: list[Problem] = []
    for node, job in ((node, job) for pair in zip(levels, jobs, strict=True) for node, job in zip(*pair, strict=True)):
        failure = wait(job, node.output, array.in_queue, lambda: progress(sum(map(Path.exists, every)), len(every)))
        if failure and node.inputs:
            join_files(node.inputs, node.output)
        elif failure:
            evidence = [f"{file}: {failure}" for file in leaves[node.output]]
            problems += [Problem(severity=RecordingVerdict.UNUSABLE, what=NOT_MEASURED, evidence=of) for of in evidence]
    return join_partial_merges([read_merge(node.output) for node in levels[-1] if node.output.exists()]), problems


def _levels(folder: Path, leaves: int, joins: bool) -> list[list[_Node]]:
    """The tree, the leaves first."""
    levels = [[_Node(folder / f"merge-0-{i}.part") for i in range(leaves)]]
    while joins and len(levels[-1]) > FAN_IN:
        below = [node.output for node in levels[-1]]
        groups = [tuple(below[at : at + FAN_IN]) for at in range(0, len(below), FAN_IN)]
        levels.append([_Node(folder / f"merge-{len(levels)}-{i}.part", each) for i, each in enumerate(groups)])
    return levels


def measure_leaf(files: Sequence[Path], window: str, output: Path, reduced: bool) -> None:
    """The work of a task of the first array: measure its files, leave a partial merge."""
    if reduced:
        merge = measure_merge(files, Window(window))
    else:
        read = measure_files(files, Window(window))
        merge = PartialMerge(loose=read.parts, broken=read.broken)
    write_merge(output, merge)


def join_files(inputs: Sequence[Path], output: Path) -> None:
    """The work of a task of a further array: join the partial merges that exist."""
    until = time.monotonic() + GRACE_S
    while not all(path.exists() for path in inputs) and time.monotonic() < until:
        time.sleep(POLL_S)
    write_merge(output, join_partial_merges([read_merge(path) for path in inputs if path.exists()]))


def submit(executor: Executor, work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> Sequence[ArrayJob]:
    """A task of `work` for each tuple of arguments. Raises WorkError: nothing was submitted."""
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
