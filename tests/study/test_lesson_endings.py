"""Lessons 4a and 4b answer from runs that ended as stuck or failed, by what the heartbeats left of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.run_files import HEARTBEATS
from harness.experiment.exercises import Experiment
from harness.heartbeats.hang import Hang, hang_file
from harness.run import Run
from harness.run.record import State, Status
from harness.study.lessons import ending_of, load_lesson
from tests.study.test_lessons import completed

COLLECTIVES = Hang("other collective", (0, 1), (), 5, 1, None, "in step 5: they differ", "look", (), found_ns=2)
LOCK = COLLECTIVES._replace(kind="lock", ranks=(1,), waiting=(0,), sentence="in step 5: rank 1 waits")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    monkeypatch.setenv("HARNESS_SITE", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def ended(root: Path, job_id: str, asked: Experiment, state: State) -> Run:
    run = completed(root, job_id, asked)
    run.write_status(Status(state=state))
    return run


def stuck(root: Path, job_id: str, asked: Experiment, hang: Hang) -> Run:
    run = ended(root, job_id, asked, "stuck")
    hang_file(run.path).parent.mkdir()
    hang_file(run.path).write_text(json.dumps(hang._asdict()))
    return run


def died(root: Path, job_id: str, asked: Experiment, left: bool) -> Run:
    """Rank 1 raises or leaves, and then rank 0 finds its connection broken."""
    run = ended(root, job_id, asked, "failed")
    own = {"type": "os._exit", "message": "0"} if left else {"type": "ValueError", "message": "wrong"}
    broken = {"type": "RuntimeError", "message": "Connection reset by peer"}
    file = HEARTBEATS.path(run.path, "here")
    file.parent.mkdir()
    lines = [
        {"event": "gone", "rank": rank, "pid": rank, "step": 5, "unix_ns": at, "error": error | {"unix_ns": at}}
        for rank, at, error in ((0, 30, broken), (1, 20, own))
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def test_the_numbers_of_a_run_that_was_stuck(tmp_path: Path) -> None:
    found = ending_of(stuck(tmp_path, "1", load_lesson("4a").a, LOCK))
    assert found.numbers == {
        "stuck_rank": 1,
        "stuck_ranks_count": 1,
        "stuck_waiting_count": 1,
        "stuck_in_collective": 0,
        "stuck_step": 5,
    }
    assert found.sentence.endswith("in step 5: rank 1 waits")


@pytest.mark.parametrize("left", [False, True])
def test_the_numbers_of_a_run_that_failed(tmp_path: Path, left: bool) -> None:
    numbers = ending_of(died(tmp_path, "1", load_lesson("4b").a, left)).numbers
    assert numbers == {"failed_rank": 1, "failed_by_error": not left, "failed_others_count": 1, "failed_step": 5}


def test_a_run_that_nobody_saw_end_has_no_numbers(tmp_path: Path) -> None:
    assert ending_of(ended(tmp_path, "1", load_lesson("4b").a, "failed")) == ("", {})


def test_both_lessons_answer_from_such_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hangs, deaths = load_lesson("4a"), load_lesson("4b")
    stuck(runs, "1", hangs.a, COLLECTIVES)
    stuck(runs, "2", hangs.b, LOCK)
    died(runs, "3", deaths.a, left=False)
    died(runs, "4", deaths.b, left=True)
    for name in ("4a", "4b"):
        assert main(["lesson", name, "--answer", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert [each["outcome"] for each in said["answers"]] == ["yes", "yes"]
        assert all(said["endings"])
    assert main(["lesson"]) == 0
    assert capsys.readouterr().out.count("ready") == 2


def test_an_answer_from_another_sites_runs_says_so_first(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = load_lesson("4a")
    stuck(runs, "1", lesson.a, COLLECTIVES)
    stuck(runs, "2", lesson.b, LOCK)
    assert main(["lesson", "4a", "--site", "leonardo", "--answer"]) == 0
    assert capsys.readouterr().out.startswith(
        "These are runs of site local: there is no pair of site leonardo yet "
        "(bash slurm.sh lesson 4a --site leonardo --run).\n\n4a: "
    )
    assert main(["lesson", "4a", "--site", "leonardo", "--no-run"]) == 0
    assert capsys.readouterr().out.count("not run yet") == 2
    assert main(["lesson", "4a", "--answer"]) == 0
    assert capsys.readouterr().out.startswith("4a: ")


def test_runs_that_ended_otherwise_are_to_be_repeated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = load_lesson("4a")
    stuck(runs, "1", lesson.a, LOCK)
    stuck(runs, "2", lesson.b, LOCK)
    assert main(["lesson", "4a", "--answer"]) == 0
    said = capsys.readouterr().out
    assert "✗ in run a both ranks wait in collectives" in said
    assert "    bash slurm.sh lesson 4a --again --answer\n" in said


def test_a_completed_run_is_no_arm_of_a_lesson_about_ends(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completed(runs, "1", load_lesson("4a").a)
    assert main(["lesson", "4a", "--no-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["a"] is None
