"""Lessons 4a and 4b answer from runs that ended as stuck or failed, by what the heartbeats left of them."""

from __future__ import annotations

import json
from pathlib import Path

from harness.common.run_folder.run_files import HEARTBEATS
from harness.experiment.exercises import Experiment
from harness.heartbeats.hang import Hang, hang_file
from harness.run import Run
from harness.study.lessons import ending_of, load_lesson
from tests.study.kit import Say, completed

COLLECTIVES = Hang("other collective", (0, 1), (), 5, 1, None, "in step 5: they differ", "look", (), found_ns=2)
LOCK = COLLECTIVES._replace(kind="lock", ranks=(1,), waiting=(0,), sentence="in step 5: rank 1 waits")


def stuck(root: Path, job_id: str, asked: Experiment, hang: Hang) -> Run:
    run = completed(root, job_id, asked, state="stuck")
    hang_file(run.path).parent.mkdir()
    hang_file(run.path).write_text(json.dumps(hang._asdict()))
    return run


def died(root: Path, job_id: str, asked: Experiment, left: bool) -> Run:
    """Rank 1 raises or leaves, and then rank 0 finds its connection broken."""
    run = completed(root, job_id, asked, state="failed")
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


def test_the_numbers_of_a_run_that_was_stuck_that_failed_and_that_nobody_saw(runs: Path) -> None:
    hangs, deaths = load_lesson("4a"), load_lesson("4b")
    numbers = {"stuck_rank": 1, "stuck_ranks_count": 1, "stuck_waiting_count": 1, "stuck_in_collective": 0}
    found = ending_of(stuck(runs, "1", hangs.a, LOCK))
    assert found.numbers == numbers | {"stuck_step": 5} and found.sentence.endswith("in step 5: rank 1 waits")
    for left in (False, True):
        numbers = {"failed_rank": 1, "failed_by_error": not left, "failed_others_count": 1, "failed_step": 5}
        assert ending_of(died(runs, f"2{left}", deaths.a, left)).numbers == numbers
    assert ending_of(completed(runs, "3", deaths.b, state="failed")) == ("", {})


def test_both_lessons_answer_from_such_runs(runs: Path, say: Say) -> None:
    hangs, deaths = load_lesson("4a"), load_lesson("4b")
    stuck(runs, "1", hangs.a, COLLECTIVES)
    stuck(runs, "2", hangs.b, LOCK)
    died(runs, "3", deaths.a, left=False)
    died(runs, "4", deaths.b, left=True)
    for name in ("4a", "4b"):
        said = say("lesson", name, "--answer", "--json").json
        assert [each["outcome"] for each in said["answers"]] == ["yes", "yes"] and all(said["endings"])
    assert say("lesson").out.count("ready") == 2


def test_runs_that_ended_otherwise_are_to_be_repeated(runs: Path, say: Say) -> None:
    lesson = load_lesson("4a")
    for number, asked in enumerate((lesson.a, lesson.b)):
        stuck(runs, str(number), asked, LOCK)
    said = say("lesson", "4a", "--answer").out
    assert "✗ in run a both ranks wait in collectives" in said
    assert "    bash slurm.sh lesson 4a --again --answer\n" in said


def test_a_completed_run_is_no_arm_of_a_lesson_about_ends(runs: Path, say: Say) -> None:
    completed(runs, "1", load_lesson("4a").a)
    assert say("lesson", "4a", "--no-run", "--json").json["a"] is None
