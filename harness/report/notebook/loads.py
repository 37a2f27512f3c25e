"""The paths that a notebook loads for each job of a report: the run or path of the request if it has this job alone,
else the job's own files. Opens no file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.summary import Summary
from harness.measure.paths import run_directories
from harness.report.compare.tables import letter
from harness.report.notebook.cells import Loaded


def loads(paths: Sequence[Path], summaries: Sequence[Summary]) -> dict[str, Loaded]:
    """Letters, as in a comparison, and the absolute paths that are loaded for each summary."""
    files = [_files(summary) for summary in summaries]
    untraced = iter(_untraced(paths, files))
    found = [
        _loaded([p for p in paths if _is_alone(p, of_job, files)], of_job) if of_job else str(next(untraced))
        for of_job in files
    ]
    return {letter(i): each for i, each in enumerate(found)}


def _files(summary: Summary) -> list[Path]:
    return [Path(path) for path in dict.fromkeys(source.path for source in summary.sources)]


def _untraced(paths: Sequence[Path], files: Sequence[Sequence[Path]]) -> list[Path]:
    """The runs without a trace that was read, in the order of their summaries, which come last."""
    traced = [file for of_job in files for file in of_job]
    runs = sorted({str(run) for run in run_directories(paths)})
    return [Path(run).absolute() for run in runs if not _holds(Path(run), traced)]


def _is_alone(path: Path, of_job: Sequence[Path], files: Sequence[Sequence[Path]]) -> bool:
    """Whether the path holds all files of this job and none of another."""
    return all(_holds(path, [file]) for file in of_job) and sum(_holds(path, other) for other in files) == 1


def _holds(path: Path, files: Sequence[Path]) -> bool:
    return any(path == file or path in file.parents for file in files)


def _loaded(alone: Sequence[Path], of_job: Sequence[Path]) -> Loaded:
    if alone or len(of_job) == 1:
        return str((alone or of_job)[0].absolute())
    return [str(file.absolute()) for file in of_job]
