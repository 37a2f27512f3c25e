"""What is made of a reference: a lesson's answer, and a recording by its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment.exercises import DDP
from harness.study.reference.record import keep
from harness.study.reference.request import checked_runs
from harness.study.reference.variants import series_of
from tests.study.kit import Say
from tests.study.recorded_reference import plan, recorded, run_all, two
from tests.study.reference_runs import made_run


def test_a_lesson_is_answered_from_a_reference_without_its_runs(runs: Path, say: Say) -> None:
    recorded(runs)
    (runs / "exercise_1_DDP").rename(runs / "away")
    said = say("lesson", "1a", "--reference", "ref").out
    assert "These are the numbers of the reference ref, not of your runs:\nrecorded on local (AMD EPYC)" in said
    assert said.count("✓") == 2 and "run a: 100 ms a step, run b: 180 ms a step" in said


def test_a_stored_run_in_doubt_counts_only_where_all_are(runs: Path) -> None:
    recording = plan(runs, "ref")
    for task in recording.tasks:
        point = task.point
        doubts = ("others used the cores",) * (point.repeat == 0)
        made_run(runs, point.experiment, 300.0 if doubts else 100.0, point.part(series_of("ref")), doubts=doubts)
    keep(recording)
    time = checked_runs([made_run(runs, DDP(gpus_per_node=2), 130.0).job_id], "ref").variants[0].time
    assert time is not None and time.a.value == pytest.approx(100e6, rel=1e-3)


@pytest.fixture
def record(runs: Path) -> list[str]:
    """The words of a recording of two variants, twice each."""
    words = ["--list", two(runs), "--name", "x", "--repeats", "2", "--site", "local"]
    return ["reference", "record", *words]


def test_a_recording_says_what_it_would_run_and_writes_nothing(runs: Path, record: list[str], say: Say) -> None:
    before = sorted(runs.rglob("*"))
    told = say(*record, "--dry-run")
    assert "reference x, list two, at site local\n  4 runs: 0 done · 4 to do\n" in told.err
    assert told.out == "plain  bash slurm.sh -e 1 -g 2\nslow   bash slurm.sh -e 1 -g 2 -- --slow-dataloading\n"
    assert sorted(runs.rglob("*")) == before


def test_a_recording_whose_runs_are_done_is_only_kept_and_never_overwritten(
    runs: Path, record: list[str], say: Say
) -> None:
    run_all(runs, plan(runs, "x", repeats=2))
    assert "x: kept 4 runs of 2 variants in" in say(*record).out
    kept = (runs / "references" / "x" / "reference.json").read_bytes()
    again = say(*record)
    assert again.code == 2 and "which is not overwritten: give another name" in again.err
    assert (runs / "references" / "x" / "reference.json").read_bytes() == kept
