"""What is made of a reference: a lesson's answer, and a recording by its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.experiment.exercises import DDP
from harness.study.reference.record import keep
from harness.study.reference.request import checked_runs
from harness.study.reference.stored import compared_settings, differing, readable_references
from harness.study.reference.variants import series_of
from tests.study.recorded_reference import plan, recorded, run_all
from tests.study.reference_runs import alone, made_run, summary_of

ASKED = DDP(gpus_per_node=2)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone(tmp_path, monkeypatch)


def test_a_lesson_is_answered_from_a_reference_without_its_traces(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root)
    for trace in root.glob("exercise_1_DDP/profiler/*/torch/*"):
        trace.unlink()
    assert main(["lesson", "1a", "--reference", "ref"]) == 0
    said = capsys.readouterr().out
    assert "These are the numbers of the reference ref, not of your runs:\nrecorded on local (AMD EPYC)" in said
    assert said.count("✓") == 2
    assert "run a: 100 ms a step, run b: 180 ms a step" in said


def test_hints_come_before_the_answer(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(root)
    assert main(["lesson", "1a", "--reference", "ref", "--hint"]) == 0
    said = capsys.readouterr().out
    assert "hint 1 of 3: " in said
    assert "✓" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["2a", "--reference", "ref"], "--reference ref: has no two runs for lesson 2a; it answers 1a"),
        (
            ["1a", "--reference", "rfe"],
            "there is no reference 'rfe': did you mean ref? (slurm.sh reference show lists all)",
        ),
        (["--reference", "ref"], "--reference ref: say which lesson"),
        (["1a", "--reference", "ref", "--again"], "--reference answers from stored runs, and --run and --again start"),
    ],
)
def test_a_lesson_that_the_reference_cannot_answer_is_a_sentence(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    recorded(root)
    assert main(["lesson", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_stored_run_in_doubt_counts_only_where_all_are(root: Path) -> None:
    recording = plan(root, "ref")
    for task in recording.tasks:
        point = task.point
        doubts = ("others used the cores",) * (point.repeat == 0)
        step_ms = 300.0 if doubts else 100.0
        made_run(root, point.experiment, step_ms, point.part(series_of("ref")), doubts=doubts)
    keep(recording)
    time = checked_runs([made_run(root, ASKED, 130.0).job_id], "ref").variants[0].time
    assert time is not None and time.a.value == pytest.approx(100e6, rel=1e-3)


def test_a_setting_that_changes_nothing_that_is_measured_may_differ() -> None:
    other = DDP(gpus_per_node=2, nsys2prv=True, seed=5)
    assert compared_settings(summary_of(other, 130.0)) == compared_settings(summary_of(ASKED, 130.0))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": 3}', " " * 1_100_000])
def test_a_damaged_reference_is_left_out(root: Path, content: str) -> None:
    recorded(root, "whole")
    (recorded(root).folder / "reference.json").write_text(content, encoding="utf-8")
    assert {folder.name for folder, _ in readable_references()} == {"whole"}


def test_another_run_in_a_run_s_folder_is_not_called_damaged(root: Path) -> None:
    recorded(root)
    other = next(root.glob("exercise_1_DDP/profiler/*"))
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(record | {"created_ns": record["created_ns"] + 1}))
    (other / "torch" / "rank0.json.gz").write_bytes(b"somebody else's")
    assert main(["reference", "check", "ref"]) == 0


def test_a_recording_says_what_it_would_run_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(root)
    words = ["--list", str(root / "two.yaml"), "--name", "x", "--repeats", "2", "--site", "local", "--dry-run"]
    before = sorted(root.rglob("*"))
    assert main(["reference", "record", *words]) == 0
    told = capsys.readouterr()
    assert "reference x, list two, at site local\n  4 runs: 0 done · 4 to do\n" in told.err
    assert told.out == "plain  bash slurm.sh -e 1 -g 2\nslow   bash slurm.sh -e 1 -g 2 -- --slow-dataloading\n"
    assert sorted(root.rglob("*")) == before


def test_a_recording_whose_runs_are_done_is_only_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all(root, plan(root, "x", repeats=2))
    words = ["--list", str(root / "two.yaml"), "--name", "x", "--repeats", "2", "--site", "local"]
    assert main(["reference", "record", *words]) == 0
    assert "x: kept 4 runs of 2 variants in" in capsys.readouterr().out
    assert main(["reference", "record", *words]) == 2
    assert "which is not overwritten: give another name" in capsys.readouterr().err


def test_a_recording_on_a_cluster_is_asked_about_first(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--site", "leonardo", "-a", "mine", "--name", "x", "--only", "ddp", "--max-gpu-hours", "1"]
    assert main(["reference", "record", *words]) == 2
    assert "add --yes to start 1 run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--list", "workshop", "--site", "local"], "its runs are for GPUs, and this site has CPUs: use --list mini"),
        (["--site", "local", "--max-parallel", "2"], "runs at the same time on this machine slow each other down"),
        (["--name", "a b", "--site", "local"], "--name a b"),
        (["--list", "nosuch"], "there is no list 'nosuch'"),
        (["--repeats", "0"], "--repeats: got '0', takes a whole number from 1 to 1000"),
        (["--micro-batch-size", "4"], "--micro-batch-size: the list has the experiments"),
        (["--csv", "x.csv"], "--csv: a reference is shown by slurm.sh reference show"),
    ],
)
def test_a_recording_that_cannot_be_is_a_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["reference", "record", "--dry-run", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_setting_that_an_older_version_wrote_is_compared_as_it_is_written_today() -> None:
    """No rate of Python's samples was null, and is false now."""
    stored = {"exercise": 1, "python_sampling": None, "micro_batch_size": 2}
    assert differing(stored, {"exercise": 1, "python_sampling": False, "micro_batch_size": 2}) == {}
    assert differing(stored, {"exercise": 1, "python_sampling": True, "micro_batch_size": 4}) == {
        "python_sampling": (False, True),
        "micro_batch_size": (2, 4),
    }
