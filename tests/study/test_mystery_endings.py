"""Mysteries that hang or die: drawn, hidden in all that tells of a run's end, answered and revealed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.common.faults import Setup, misfits, parse_fault
from harness.common.mystery import hides
from harness.common.paths import ROOT
from harness.experiment.exercises import DDP
from harness.explain.answer import answer as said_of
from harness.heartbeats.dead import ends_of_ranks
from harness.heartbeats.hang import Hang, hang_file, read_hang, reveal_hang, write_hang
from harness.heartbeats.lines import ProgramLine
from harness.heartbeats.read import Reader
from harness.live.notes import failed
from harness.measure.jobs import without_diagnosis
from harness.run import Run, find_run
from harness.run.ended import why_it_ended
from harness.run.mystery import MysteryAnswer, MysterySolution, write_revealed
from harness.study.mysteries import ENDINGS, Level, MysteryPlace, Subject, draw_ending, with_mystery
from harness.study.mystery_grades import checked, grade
from tests.study.test_lesson_endings import died
from tests.study.test_lessons import completed
from tests.study.test_mysteries import hidden, hide
from tests.waiting import limit_s

TWO = MysteryPlace(Setup(1, 2, False, 2, steps=36), "cpu", 100.0)
SUBJECTS: tuple[Subject, ...] = ("hang", "crash")
LEVELS: tuple[Level, ...] = (1, 2)
SEEDS = range(60)
PLACE = ProgramLine("/home/ann/train.py", 3, "step")
PLACES = ("rank 0: waits in all_reduce (train.py:4)", "rank 1: waiting for a lock (train.py:3)")
LOCK = Hang("lock", (1,), (0,), 7, 1, PLACE, "in step 7: rank 1 waits for a lock", "look", PLACES, found_ns=2)


# ---- drawing


@pytest.mark.parametrize(("subject", "level"), [*product(SUBJECTS, LEVELS)])
def test_each_kind_of_a_level_is_drawn_and_no_other(subject: Subject, level: Level) -> None:
    drawn = [parse_fault(draw_ending(seed, level, subject, TWO)[0]) for seed in SEEDS]
    assert {fault.values["kind"] for fault in drawn} == set(ENDINGS[subject][level][1])
    assert {fault.rank for fault in drawn} == {0, 1}
    assert len({fault.step for fault in drawn}) > 5
    assert draw_ending(7, level, subject, TWO) == draw_ending(7, level, subject, TWO)


def test_every_kind_belongs_to_one_level() -> None:
    for subject in SUBJECTS:
        key = parse_fault(subject).kind.key("kind")
        assert key is not None
        levels = [word for _, words in ENDINGS[subject].values() for word in words]
        assert sorted(levels) == sorted(key.words)


@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_drawn_works_there(stages: int) -> None:
    """The stages of a pipeline cannot meet in a collective of their own."""
    setup = Setup(3, 4, False, 2, steps=20, stages=stages)
    for subject, level, seed in product(SUBJECTS, LEVELS, SEEDS):
        fault = parse_fault(draw_ending(seed, level, subject, MysteryPlace(setup, "cpu", 100.0))[0])
        assert [*misfits([fault], setup)] == []


def test_a_training_that_is_too_short_is_refused() -> None:
    short = MysteryPlace(Setup(1, 2, False, 2, steps=3), "cpu", 100.0)
    with pytest.raises(RequestError, match="--kind hang: it comes in step 12 or before: use --steps 13"):
        draw_ending(1, 1, "hang", short)


def test_the_run_is_ended_and_not_traced_unless_asked() -> None:
    secret = ("hang,kind=lock,step=7,rank=1",)
    made = with_mystery(DDP(), 1, secret, DDP(gpus_per_node=2))
    assert (made.on_hang, made.profiler) == ("stop", "none")
    asked = with_mystery(DDP(on_hang="report", profiler="torch"), 1, secret, DDP(gpus_per_node=2))
    assert (asked.on_hang, asked.profiler) == ("report", "torch")


# ---- hiding


def test_a_hang_has_the_places_of_its_ranks_and_no_cause_until_it_is_revealed(tmp_path: Path) -> None:
    hide(tmp_path, ("hang,kind=lock,step=7,rank=1",))
    assert hides(tmp_path, "hang") and not hides(tmp_path, "crash")
    hang_file(tmp_path).parent.mkdir()
    write_hang(tmp_path, LOCK, hidden=True)
    shown = read_hang(tmp_path)
    assert shown is not None
    assert (shown.kind, shown.ranks, shown.waiting, shown.place) == ("mystery", (), (), None)
    assert shown.lines == LOCK.lines
    assert "rank 1 waits" not in "".join(path.read_text() for path in hang_file(tmp_path).parent.iterdir())
    reveal_hang(tmp_path)
    assert read_hang(tmp_path) == LOCK


def test_to_reveal_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    hang_file(tmp_path).parent.mkdir()
    write_hang(tmp_path, LOCK)
    reveal_hang(tmp_path)
    assert read_hang(tmp_path) == LOCK


def crashed(root: Path, *, left: bool) -> Run:
    kind = "gone" if left else "exception"
    secret = (f"crash,kind={kind},step=5,rank=1",)
    run = died(root, "7", DDP(gpus_per_node=2, mystery=hidden(secret)), left)
    hide(run.path, secret)
    return Run(run.path)


@pytest.mark.parametrize("left", [False, True])
def test_a_death_has_the_end_of_each_rank_by_rank(tmp_path: Path, left: bool) -> None:
    run = crashed(tmp_path, left=left)
    ends = "rank 0: RuntimeError: Connection reset by peer; rank 1: "
    ends += "os._exit(0)" if left else "ValueError: wrong"
    assert ends_of_ranks(run.path) == ends
    assert why_it_ended(run, "failed", 1) == ends
    (note,) = failed(Reader(run.path).read())
    assert (note.ranks, note.sentence) == ((), f"A rank ended: {ends}.")
    asked = run.record.experiment
    assert isinstance(asked, DDP)
    write_revealed(run.path, MysterySolution(faults=asked.mystery.faults))
    (note,) = failed(Reader(run.path).read())
    assert note.ranks == (1,)


@pytest.mark.parametrize("fault", ["hang,kind=lock", "crash"])
def test_the_report_asks_for_kind_rank_and_step(tmp_path: Path, fault: str) -> None:
    asked = DDP(mystery=hidden((fault,)))
    said = said_of(without_diagnosis(Summary(experiment=asked, run={"job_id": "local-7"}), tmp_path))
    assert "This run is a mystery: " in said.sentences[-1]
    assert said.command == "bash slurm.sh lesson mystery answer local-7 --cause KIND --rank RANK --step STEP"


# ---- grading

HANG = parse_fault("hang,kind=lock,step=7,rank=1")
RIGHT = MysteryAnswer(cause="lock", ranks=(1,), step=7)


@pytest.mark.parametrize(
    ("change", "points", "hint"),
    [
        ({}, 100, ""),
        ({"cause": "sleep"}, 60, "it is not sleep; look at the place of the rank that does not wait"),
        ({"ranks": (0,)}, 70, "another one; a rank that waits in a collective"),
        ({"ranks": None}, 70, "it is one rank"),
        ({"step": None}, 70, "--step is missing"),
        ({"step": 8}, 70, "look at the step in status"),
    ],
)
def test_cause_rank_and_step_count(change: dict[str, object], points: int, hint: str) -> None:
    graded = grade(HANG, RIGHT.model_copy(update=change), world_size=2)
    assert graded.points == points
    assert [hint in part.hint for part in graded.parts if part.hint] == ([True] if hint else [])
    assert sum(part.of for part in graded.parts) == 100


def test_of_two_ranks_that_do_not_fit_together_either_is_right() -> None:
    order = parse_fault("hang,kind=order,step=7,rank=1")
    said = RIGHT.model_copy(update={"cause": "order", "ranks": (0,)})
    assert (grade(order, said, 2).points, grade(order, said, 3).points) == (100, 70)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cause": "lok"}, "--cause: there is no cause 'lok': did you mean lock?"),
        ({"cause": "hang"}, "(slurm.sh help faults hang lists all)"),
        ({"ms": 5.0}, "--ms is for a slow training, and this is a hang: drop it"),
        ({"every": 2}, "--every is for a slow training, and this is a hang: drop it"),
        ({"step": -1}, "--step takes a whole number ≥ 0, not -1; the nearest is 0"),
    ],
)
def test_an_answer_that_cannot_be_right_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        checked(RIGHT.model_copy(update=change), [HANG], 2)
    assert sentence in str(refused.value)


def test_answers_and_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = crashed(tmp_path, left=True)
    words = ["lesson", "mystery", "answer", str(run.path), "--cause", "gone", "--rank", "1"]
    assert main(words) == 0
    assert "answer 1 to 7: 70 of 100" in capsys.readouterr().out
    assert main([*words, "--step", "5", "--reveal"]) == 0
    said = capsys.readouterr().out
    assert "it was  crash,kind=gone,rank=1: its process ends at once with status 0 (os._exit)\n" in said
    assert "answer 1: gone --rank 1\n" in said
    assert "the harness says: rank 1 left the training in step 5 by os._exit(0)" in said
    assert main(["lesson", "mystery", "reveal", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == 100


@pytest.mark.parametrize("fault", ["nan", "oom", "checkpoint"])
def test_a_secret_that_no_mystery_draws_is_refused(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A handed-in file may hold whatever somebody has written."""
    run = completed(tmp_path, "7", DDP(gpus_per_node=2, mystery=hidden((fault,))))
    hide(run.path, (fault,))
    assert main(["lesson", "mystery", str(run.path)]) == 2
    assert f"the mystery cannot be opened: {fault} is drawn for none" in capsys.readouterr().err


# ---- a run


@pytest.mark.train
@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_real_one_tells_no_cause_before_its_end(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"HARNESS_RUNS": str(tmp_path), "HARNESS_SITE": "local", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    words = ["lesson", "mystery", "-e", "1", "-g", "2", "--kind", subject, "--level", "2", "--seed", "3"]
    subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=ROOT, env=dict(os.environ), capture_output=True, check=False, timeout=limit_s(300),
    )  # fmt: skip
    run = find_run("last")
    asked = run.record.experiment
    assert isinstance(asked, DDP) and asked.mystery is not None
    fault = parse_fault(asked.mystery.faults[0])
    for command in (["status", "last"], ["logs", "last"], ["watch", "last", "--once"]):
        main(command)
    told = capsys.readouterr()
    for telling in ("wait for", "failed first", "left the training"):
        assert telling not in told.out
    status = run.status()
    assert status is not None and status.state == {"hang": "stuck", "crash": "failed"}[subject]
    place = ["--rank", str(fault.rank), "--step", str(fault.step)]
    assert main(["lesson", "mystery", "answer", "last", "--cause", fault.values["kind"], *place, "--reveal"]) == 0
    said = capsys.readouterr().out
    assert "100 of 100" in said
    assert f"in step {fault.step}" in said.split("the harness says: ")[1]
