"""Ranks measured by tasks of a job array give the summary that measuring them here gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import submitit

from harness.analysis.summary import Window
from harness.cli.main import main
from harness.measure import request, slurm_array
from harness.measure.jobs import summarise
from harness.measure.partial_merge import PartialMerge, summarise_partial_merge
from harness.measure.paths import measure_files
from harness.measure.request import ReportRequest, measure_request
from harness.measure.slurm_array import TaskArray, chunk, measure_distributed
from tests.analysis.test_silent_errors import kernel, timed, write_decimals
from tests.analysis.test_tree import dumped


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    """Five ranks' traces."""
    files = []
    for r in range(5):
        folder = tmp_path / f"r{r}"
        folder.mkdir()
        events = [timed("ProfilerStep#1", "user_annotation", 0, 1000), kernel(10, 100 * (r + 1), 1)]
        files.append(write_decimals(folder, events).rename(tmp_path / f"rank{r}.json"))
    return files


@dataclass
class Task:
    """A task that has ended well, or did not, as submitit sees it."""

    ended: bool = True
    error: BaseException | None = None
    job_id: str = "7_0"

    def done(self) -> bool:
        if isinstance(self.error, KeyboardInterrupt):
            raise self.error
        return self.ended

    def result(self) -> object:
        raise self.error or AssertionError


CANCELLED = Task(error=submitit.core.utils.UncompletedJobError("Job 7_0 has no output\nand was cancelled"))
FORGOTTEN = Task(ended=False)  # it left the queue of a cluster without accounting: submitit never sees its end
INTERRUPTED = Task(error=KeyboardInterrupt())  # at whose wait Ctrl-C is pressed


class Tasks:
    """An executor that runs each task at once, and counts. lost: what stands in the place of the first one, or of
    all."""

    def __init__(self, lost: Task | None = None, *, all_lost: bool = False) -> None:
        self.count, self.lost, self.all_lost = 0, lost, all_lost

    def map_array(self, fn: Any, *iterables: Any) -> list[Any]:
        tasks = list(zip(*iterables, strict=True))
        lost = (len(tasks) if self.all_lost else 1) if self.lost else 0
        for task in tasks[lost:]:
            fn(*task)
        self.count += len(tasks) - lost
        return [self.lost] * lost + [Task()] * (len(tasks) - lost)


class Ended:
    """Executors for arrays that follow each other: a further one is asked for with the jobs before it."""

    def __init__(self, first: Any) -> None:
        self.first, self.further = first, Tasks()
        self.asked: list[int] = []

    def after(self, jobs: Any) -> Tasks:
        self.asked.append(len(jobs))
        return self.further

    def array(self, folder: Path) -> TaskArray:
        return TaskArray(self.first, 5, folder, in_queue=lambda job: False, after=self.after)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_array, "GRACE_S", 0.05)
    monkeypatch.setattr(slurm_array, "POLL_S", 0.01)
    monkeypatch.setattr(slurm_array, "FAN_IN", 2)


def is_as_here(merge: PartialMerge, ranks: list[Path]) -> bool:
    """Whether what was joined gives the summary of one process; it has no replay."""
    return dumped(summarise_partial_merge(merge)) == dumped(summarise(measure_files(ranks, Window.STEPS).parts))


@pytest.mark.parametrize(
    ("lost", "said"), [(CANCELLED, "and was cancelled"), (FORGOTTEN, "task 7_0 left the queue without a result")]
)
def test_a_lost_task_costs_its_files_and_nothing_else(ranks: list[Path], tmp_path: Path, lost: Task, said: str) -> None:
    array = TaskArray(Tasks(lost), 5, tmp_path / "partial", in_queue=lambda job: False)
    reported: list[tuple[int, int]] = []
    merge, (finding,) = measure_distributed(ranks, Window.STEPS, array, lambda *counts: reported.append(counts))
    assert len(merge.loose) == 4
    assert reported and set(reported) == {(4, 5)}
    assert finding.evidence.endswith(said)


@pytest.fixture
def on_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and stand-ins for Slurm's commands that are never called."""
    monkeypatch.chdir(tmp_path)
    for command in ("sbatch", "srun"):
        (tmp_path / command).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_ctrl_c_leaves_the_array_and_says_where_it_is_shown_by_a_stand_in_for_slurm(
    ranks: list[Path], on_slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request, "_executor", lambda _folder, _parameters: Tasks(INTERRUPTED))
    words = ["report", *map(str, ranks), "--json", "--executor", "slurm"]
    assert main(words) == 130
    (folder,) = on_slurm.glob("report-*")
    said, last = capsys.readouterr().err.splitlines()
    assert last == "slurm.sh: interrupted"
    assert said == f"slurm.sh report: the array's tasks may continue (squeue --me), in {folder}"


def test_without_srun_it_is_refused(ranks: list[Path], on_slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (on_slurm / "srun").unlink()
    assert main(["report", str(ranks[0]), "--executor", "slurm"]) == 2
    assert "--executor slurm: no srun is on PATH" in capsys.readouterr().err


def test_chunks_hold_every_file_once_and_are_about_equal(tmp_path: Path) -> None:
    files = [tmp_path / f"f{i}" for i in range(10)]
    for i, path in enumerate(files, 1):
        path.write_bytes(b"x" * i * 100)
    chunks = chunk(files, 3)
    assert sorted(f for c in chunks for f in c) == sorted(files)
    weights = [sum(f.stat().st_size for f in c) for c in chunks]
    assert max(weights) <= 1.3 * min(weights)
    assert [len(c) for c in chunk(files[:2], 16)] == [1, 1]


def test_arrays_that_join_what_others_left_give_the_summary_of_one_process(ranks: list[Path], tmp_path: Path) -> None:
    run = Ended(Tasks())
    merge, broken = measure_distributed(ranks, Window.STEPS, run.array(tmp_path / "tree"), reduced=True)
    assert broken == [] and is_as_here(merge, ranks)
    assert (run.first.count, run.further.count, run.asked) == (5, 5, [5, 3]), "5 leaves, 3 joins, 2 joins of joins"


def test_a_join_that_is_lost_is_made_here(ranks: list[Path], tmp_path: Path) -> None:
    lost = Tasks(CANCELLED, all_lost=True)
    array = TaskArray(Tasks(), 5, tmp_path / "tree", in_queue=lambda job: False, after=lambda jobs: lost)
    merge, broken = measure_distributed(ranks, Window.STEPS, array, reduced=True)
    assert broken == [] and is_as_here(merge, ranks)


def test_many_traces_are_measured_as_a_tree_here(ranks: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(ranks[0].parent)
    flat = measure_request(ReportRequest([folder])).summaries
    monkeypatch.setattr("harness.measure.request.MOST_DETAILED", 4)
    monkeypatch.setattr("harness.measure.partial_merge.AT_ONCE", 2)
    found = measure_request(ReportRequest([folder])).summaries
    assert dumped(found) == dumped(flat)
    assert all(any(w.field == "replay" for w in s.quality.withheld) for s in found)
