"""Reports of nsys whose names differ in one number are one job; no other files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.summary import Summary, problem_texts
from harness.measure.paths import measure_jobs
from tests.synthetic import kineto
from tests.synthetic.nsys import Nsys

EPOCH_NS = 1_700_000_000_000_000_000


def report(path: Path, *, late_ns: int = 0) -> Path:
    """An export of a process that works for three batches."""
    made = Nsys()
    made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS + late_ns)
    made._rows["TARGET_INFO_SESSION_START_TIME"].pop(0)
    for i in range(3):
        made.range(f"batch_{i}", i * 1000, 1000, pid=9)
        made.kernel("gemm", i * 1000 + 100, 500, pid=9, device=0)
    path.parent.mkdir(exist_ok=True)
    return made.saved(path)


def jobs(folder: Path) -> list[tuple[list[int], int | None]]:
    """Ranks and world size of each job."""
    return [(summary.ranks, summary.world_size) for summary in measure_jobs([folder])]


def missing(summary: Summary) -> bool:
    return any(problem.what == problem_texts.RANKS_MISSING for problem in summary.quality.problems)


@pytest.mark.parametrize("name", ["report.{}.sqlite", "report_{}.sqlite", "n2_job17_{}.sqlite", "prof-{:03}.sqlite"])
def test_reports_that_count_up_from_0_are_one_job(tmp_path: Path, name: str) -> None:
    for rank in range(4):
        report(tmp_path / name.format(rank), late_ns=rank)
    (summary,) = measure_jobs([tmp_path])
    assert (summary.ranks, summary.world_size, missing(summary)) == ([0, 1, 2, 3], 4, False)
    assert sorted(Path(source.path).name for source in summary.sources) == [name.format(rank) for rank in range(4)]
    assert [(source.rank, name.format(source.rank)) for source in summary.sources] == [
        (rank, Path(source.path).name) for rank, source in enumerate(summary.sources)
    ]


@pytest.mark.parametrize(
    ("names", "late_ns"),
    [
        (["report1.sqlite", "report2.sqlite"], 0),
        (["report.0.sqlite", "report.2.sqlite"], 0),
        (["a0.sqlite", "b1.sqlite"], 0),
        (["a0_b0.sqlite", "a1_b1.sqlite"], 0),
        (["report.0.sqlite", "report.1.sqlite"], 10**10),
    ],
)
def test_other_names_and_later_recordings_are_jobs_of_their_own(tmp_path: Path, names: list[str], late_ns: int) -> None:
    for index, name in enumerate(names):
        report(tmp_path / name, late_ns=index * late_ns)
    assert [world for _, world in jobs(tmp_path)] == [None, None]


def test_traces_of_another_tool_are_not_joined_by_their_names(tmp_path: Path) -> None:
    for number in range(2):
        kineto.kineto(tmp_path / f"trace.{number}.json", kineto.gpu_step())
    assert len(jobs(tmp_path)) == 2


def test_two_series_in_one_folder_are_two_jobs(tmp_path: Path) -> None:
    for name in ("before", "after"):
        for rank in range(2):
            report(tmp_path / f"{name}.{rank}.sqlite")
    assert jobs(tmp_path) == [([0, 1], 2), ([0, 1], 2)]


def host_only(path: Path) -> Path:
    made = Nsys()
    made.range("batch_0", 0, 3000, pid=5, tid=5)
    return made.saved(path)


def test_a_launcher_without_work_of_a_gpu_comes_last_and_is_no_rank(tmp_path: Path) -> None:
    host_only(tmp_path / "report.0.sqlite")
    kineto.kineto(tmp_path / "agent.json", [kineto.operator("aten::empty", 10, 500)])
    for rank in (1, 2):
        report(tmp_path / f"report.{rank}.sqlite")
    found = [(Path(summary.sources[0].path).name, summary.ranks) for summary in measure_jobs([tmp_path])]
    assert [name for name, _ in found] == ["report.1.sqlite", "report.2.sqlite", "agent.json", "report.0.sqlite"]
    assert all(ranks == [] for name, ranks in found if name.startswith("report"))
    report(tmp_path / "others" / "report.0.sqlite")
    report(tmp_path / "others" / "report.1.sqlite")
    host_only(tmp_path / "others" / "a.sqlite")
    assert jobs(tmp_path / "others") == [([0, 1], 2), ([], None)]


def test_reports_of_cpus_only_are_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        host_only(tmp_path / f"report.{rank}.sqlite")
    assert jobs(tmp_path) == [([0, 1], 2)]
