"""Ranks measured by a Slurm job array: each task measures a chunk of files into one partial result on disk.

Only paths and parts travel. `merge_parts` joins them, so the chunks of files do not change the result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import submitit
from pydantic import TypeAdapter

from harness.analysis.process.part import RankPart, merge_parts
from harness.analysis.summary import Finding, Verdict, Window
from harness.common.errors import WorkError
from harness.common.small_file import read_small_json, why_unread
from harness.measure.paths import measure_files
from harness.traces.progress import OnProgress, silent

POLL_S = 0.5
LOST = "a trace was not measured"
GRACE_S = 30.0  # a shared file system may show a result this much later than the queue forgets its task
MOST_PARTIAL_BYTES = 2 << 30  # of hundreds of ranks
_PARTS = TypeAdapter(list[RankPart])
_FINDINGS = TypeAdapter(list[Finding])


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
    there it would wait without end for a cancelled task.
    """

    executor: Executor
    tasks: int
    folder: Path
    in_queue: Callable[[ArrayJob], bool] = lambda job: not job.done()


def measure_distributed(
    files: Sequence[Path], window: Window, array: Array, progress: OnProgress = silent
) -> tuple[list[RankPart], list[Finding]]:
    """As paths.measure_files, by the tasks of a job array. Partial results are left in the array's folder.

    Each file of a task that fails becomes a finding; the others count. `progress` gets the number of finished tasks.

    Raises:
        WorkError: nothing was submitted.
    """
    array.folder.mkdir(parents=True, exist_ok=True)
    chunks = chunk([file.absolute() for file in files], array.tasks)
    outputs = [array.folder.absolute() / f"partial-{i}.json" for i in range(len(chunks))]
    jobs = _submit(array, chunks, [window.value] * len(chunks), outputs)
    parts: list[list[RankPart]] = []
    findings: list[Finding] = []

    def show_progress() -> None:
        progress(sum(output.exists() for output in outputs), len(outputs))

    for job, files_of_job, output in zip(jobs, chunks, outputs, strict=True):
        failure = _wait(job, output, array.in_queue, show_progress)
        if failure is None:
            own, broken = read_partial(output)
            parts.append(own)
            findings += broken
        else:
            lost = (f"{file}: {failure}" for file in files_of_job)
            findings += [Finding(severity=Verdict.UNUSABLE, what=LOST, evidence=e) for e in lost]
    return merge_parts(*parts), findings


def _submit(array: Array, *columns: Sequence[Any]) -> Sequence[ArrayJob]:
    try:
        return array.executor.map_array(measure_chunk, *columns)
    except FileNotFoundError as error:
        raise WorkError(f"--executor slurm: {error.filename} is not on PATH: log in to the cluster") from None
    except submitit.core.utils.FailedJobError as error:
        raise WorkError(f"--executor slurm: the job array was not submitted: {_last_line(error)}") from None


def chunk(files: Sequence[Path], tasks: int) -> list[list[Path]]:
    """At most `tasks` non-empty chunks of about equal bytes: the largest files are dealt first."""
    count = max(1, min(tasks, len(files)))
    chunks: list[list[Path]] = [[] for _ in range(count)]
    weight = [0] * count
    for file in sorted(files, key=lambda f: (-_size(f), str(f))):
        lightest = min(range(count), key=lambda i: (weight[i], i))
        chunks[lightest].append(file)
        weight[lightest] += _size(file) + 1
    return [c for c in chunks if c]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def measure_chunk(files: Sequence[Path], window: str, output: Path) -> str:
    """The work of one task: measure its files and write the partial result, atomically. Returns its path."""
    parts, findings, _ = measure_files(list(files), Window(window))
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    content = {
        "parts": _PARTS.dump_python(parts, mode="json"),
        "findings": _FINDINGS.dump_python(findings, mode="json"),
    }
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(output)
    return str(output)


def read_partial(path: Path) -> tuple[list[RankPart], list[Finding]]:
    """A partial result. Raises WorkError: the file is missing or damaged."""
    try:
        content = read_small_json(path, MOST_PARTIAL_BYTES)
        return _PARTS.validate_python(content["parts"]), _FINDINGS.validate_python(content["findings"])
    except (OSError, ValueError) as error:
        why = why_unread(error)
    except (KeyError, TypeError):
        why = "it lacks its parts"
    raise WorkError(f"{path}: is not a partial result of a report ({why})")


def _wait(
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
