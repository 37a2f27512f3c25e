"""Mysteries: drawn from a seed so that they show, hidden from every report, graded with hints, on a board."""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path

import pytest

from harness.analysis.summary import JobTime, Replay, Summary, TimeLost, WhatIf
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.common.faults import FAULTS, Setup, misfits, parse_fault, wrong_device
from harness.common.mystery import HIDDEN_FILE, checksum, hidden_file, hidden_text
from harness.experiment.exercises import DDP, DeepSpeed, Megatron
from harness.experiment.parse import command_of
from harness.experiment.training import Mystery
from harness.explain.answer import answer as said_of
from harness.measure.jobs import without_diagnosis
from harness.run import Run
from harness.run.mystery import (
    AnswerLine,
    MysteryAnswer,
    MysterySolution,
    add_answer,
    answers_file,
    read_answers,
    revealed_file,
    write_revealed,
)
from harness.study.lessons import find_pair, load_lesson
from harness.study.mysteries import (
    Level,
    MysteryPlace,
    answer_files,
    draw,
    faults_of,
    place_of,
    read_board,
    subject_of,
    with_mystery,
)
from harness.study.mystery_grades import checked, grade, result
from tests.study.test_lessons import completed

TWO = MysteryPlace(Setup(1, 2, False, 2), "cpu", 100.0)
LEVELS: tuple[Level, ...] = (1, 2)
SEEDS = range(40)


def hidden(faults: tuple[str, ...], level: Level = 1) -> Mystery:
    subject = subject_of(list(map(parse_fault, faults)))
    return Mystery(level=level, subject=subject, commitment=checksum(faults), faults=faults)


def hide(run: Path, faults: tuple[str, ...]) -> None:
    """Put the faults where a launch puts them."""
    hidden_file(run).parent.mkdir()
    hidden_file(run).write_text(hidden_text(faults))


# ---- drawing


@pytest.mark.parametrize("level", LEVELS)
def test_a_seed_draws_always_the_same(level: Level) -> None:
    assert draw(7, level, TWO) == draw(7, level, TWO)
    assert len({draw(seed, level, TWO) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize(("exercise", "ranks", "device"), [*product((1, 2, 3), (1, 2, 8), ("cpu", "cuda"))])
def test_what_is_drawn_works_there(exercise: int, ranks: int, device: str) -> None:
    setup = Setup(exercise, ranks, False, 2)
    for level, seed in product(LEVELS, SEEDS):
        faults = [parse_fault(text) for text in draw(seed, level, MysteryPlace(setup, device, 100.0))]
        assert [*misfits(faults, setup), *wrong_device(faults, device)] == []
        assert len(faults) == 1


def test_each_level_is_what_it_says() -> None:
    drawn = {level: [parse_fault(draw(s, level, TWO)[0]) for s in SEEDS] for level in LEVELS}
    assert all(f.rank is None and f.values["every"] == "1" for f in drawn[1])
    assert all(f.rank is not None or f.values["every"] != "1" for f in drawn[2])
    assert {f.rank for f in drawn[2]} == {None, 0, 1}


def test_every_fault_for_mysteries_is_drawn() -> None:
    drawn = {parse_fault(text).name for level in LEVELS for s in SEEDS for text in draw(s, level, TWO)}
    assert drawn == {name for name, kind in FAULTS.items() if kind.mystery}
    assert all(FAULTS[name].key("ms") is not None for name in drawn), "an answer says milliseconds"


@pytest.mark.parametrize("level", LEVELS)
def test_its_cost_shows_in_a_mean_step(level: Level) -> None:
    for seed in SEEDS:
        faults = [parse_fault(text) for text in draw(seed, level, TWO)]
        shares = [f.ns() / 1e8 / int(f.values["every"]) for f in faults]
        assert all(0.15 <= share <= 0.6 for share in shares)


def test_where_no_fault_works_a_lower_level_is_named() -> None:
    with pytest.raises(RequestError, match="--level 2: no fault works in this training: use --level 1"):
        draw(1, 2, MysteryPlace(Setup(9, 2), "cpu", 100.0))


def test_a_step_of_a_gpu_is_longer_for_more_work() -> None:
    from harness.experiment.model import find_model

    model = find_model("llama-3.2-1b")[0]
    small = DDP(gpus_per_node=2, micro_batch_size=2, seq_length=1024)
    large = small.model_copy(update={"micro_batch_size": 8})
    few, many = (place_of(asked, "cuda", model).step_ms for asked in (small, large))
    assert many == pytest.approx(4 * few)


# ---- hiding


def test_a_run_s_name_says_its_level_and_no_more() -> None:
    asked = with_mystery(DDP(), 2, ("pause,ms=5",), DDP(gpus_per_node=2))
    assert asked.name("m") == ("m", f"{DDP(gpus_per_node=2).name('m')[1]}-mystery2")
    assert "pause" not in asked.model_dump_json()
    assert "pause" not in repr(asked)


def test_a_period_can_be_seen_unless_the_steps_were_asked_for() -> None:
    secret, two = ("pause,ms=5,every=3",), Megatron(gpus_per_node=2)
    assert with_mystery(Megatron(), 2, secret, two).active_steps == 18
    assert with_mystery(Megatron(active_steps=9), 2, secret, two).active_steps == 9
    with pytest.raises(RequestError, match="the nearest is --active-steps 9"):
        with_mystery(Megatron(active_steps=8), 2, secret, two)
    assert with_mystery(Megatron(), 1, secret, two).active_steps == Megatron().active_steps


def test_no_flags_ask_for_a_mystery_and_no_lesson_takes_its_run(tmp_path: Path) -> None:
    lesson = load_lesson("1a")
    mystery = hidden(("pause,ms=5",))
    assert command_of(DDP(mystery=mystery)) is None
    plain = completed(tmp_path, "1", DDP())
    runs = [plain, completed(tmp_path, "2", DDP(mystery=mystery))]
    found = find_pair(lesson.pair(cpu=True), runs)
    assert found.a is not None and found.a.path == plain.path


def told() -> Summary:
    """A summary with a diagnosis."""
    lost = TimeLost(cause="data-stall", ranks=[0], lost_ns=5, low_ns=4, high_ns=6, share=0.5, evidence="60 ms")
    change = WhatIf(name="no-data-stall", meaning="no waiting", step_ns=5, low_ns=4, high_ns=6, gain=0.5)
    replay = Replay(steps=9, processes=2, step_ns=10, replayed_ns=10, error=0.0, what_ifs=[change])
    return Summary(findings=[lost], replay=replay, run={"job_id": "local-7"})


@pytest.mark.parametrize("kept", ["record", "file"])
def test_a_mystery_s_summary_has_no_diagnosis(tmp_path: Path, kept: str) -> None:
    """Also where its record was damaged: the hidden faults still lie there."""
    secret = ("data-stall,ms=60",)
    if kept == "file":
        hide(tmp_path, secret)
    asked = DDP(mystery=hidden(secret)) if kept == "record" else None
    known = {"experiment": asked, "job_time": JobTime(elapsed_ns=1, useful_share=0.0)}
    summary = without_diagnosis(told().model_copy(update=known), tmp_path)
    assert "data-stall" not in summary.model_dump_json()
    assert [w.field for w in summary.quality.withheld] == ["findings", "replay.what_ifs", "job_time"]
    assert summary.job_time is None
    shown = said_of(summary)
    assert "This run is a mystery" in shown.sentences[0]
    assert shown.command and "mystery answer local-7" in shown.command


def test_a_file_with_the_faults_ends_it_and_no_other(tmp_path: Path) -> None:
    asked = DDP(mystery=hidden(("data-stall,ms=60",)))
    summary = told().model_copy(update={"experiment": asked})
    assert without_diagnosis(summary, tmp_path).findings == []
    revealed_file(tmp_path).write_text("{}")
    assert without_diagnosis(summary, tmp_path).findings == []
    write_revealed(tmp_path, MysterySolution(faults=("data-stall,ms=60",)))
    assert without_diagnosis(summary, tmp_path) == summary


def test_other_runs_keep_their_diagnosis(tmp_path: Path) -> None:
    assert without_diagnosis(told(), tmp_path) == told()


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (("pause,ms=6",), "its faults were changed after the run"),
        ((), "an earlier version sealed its faults: use that one (commit in run.json)"),
    ],
)
def test_a_mystery_whose_faults_are_others_or_unknown_is_not_opened(faults: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        faults_of(hidden(("pause,ms=5",)).model_copy(update={"faults": faults}))
    assert sentence in str(refused.value)


def test_a_mystery_of_an_earlier_version_is_still_one_and_is_not_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = completed(tmp_path, "7", DDP(gpus_per_node=2))
    record = json.loads((run.path / "run.json").read_text())
    record["experiment"]["mystery"] = {"level": 1, "commitment": "0" * 64, "sealed": "x"}
    (run.path / "run.json").write_text(json.dumps(record))
    (run.path / "mystery.sealed").write_text("x")
    old = Run(run.path)
    assert without_diagnosis(told().model_copy(update={"experiment": old.record.experiment}), old.path).findings == []
    assert main(["lesson", "mystery", "reveal", str(old.path)]) == 2
    assert "an earlier version sealed its faults" in capsys.readouterr().err
    revealed_file(old.path).write_text('{"faults": ["pause,ms=5"], "salt": "00", "without": null}')
    assert without_diagnosis(told(), old.path) == told()


@pytest.mark.parametrize("path", ["run", "run.json"])
def test_a_mystery_is_launched_again_only_where_its_faults_are(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    words = ["run", str(run.path if path == "run" else run.path / "run.json"), "--dry-run", "--json"]
    assert main(words) == 0
    assert "data-stall" not in capsys.readouterr().out
    hidden_file(run.path).unlink()
    assert main(words) == 2
    assert "its faults are not in its run.json: slurm.sh lesson mystery -e 1 starts" in capsys.readouterr().err


# ---- grading

STALL = parse_fault("host-stall,ms=60,in=backward,rank=1,every=3")
RIGHT = MysteryAnswer(cause="host-stall", ms=60, ranks=(1,), phase="backward", every=3)


@pytest.mark.parametrize(
    ("change", "points", "hint"),
    [
        ({}, 100, ""),
        ({"ms": 71.9}, 100, ""),
        ({"ms": 85}, 85, "too long"),
        ({"ms": 35}, 85, "too short"),
        ({"ms": 300}, 70, "too long"),
        ({"ms": 20}, 70, "that is the mean over all steps"),
        ({"cause": "pause"}, 60, "it is not pause; in one phase the host calls no operator"),
        ({"ranks": None}, 90, "fewer ranks: a rank that waits"),
        ({"ranks": (0,)}, 90, "other ranks"),
        ({"every": 1}, 90, "--every: count the steps"),
        ({"phase": None}, 90, "--phase is missing"),
        ({"phase": "forward"}, 90, "--phase: not forward"),
        ({"cause": "pause", "ms": 900, "ranks": (0,), "phase": None, "every": 1}, 0, "it is not pause"),
    ],
)  # fmt: skip
def test_each_miss_costs_its_points_and_gets_a_hint(change: dict[str, object], points: int, hint: str) -> None:
    graded = grade(STALL, RIGHT.model_copy(update=change), world_size=2)
    assert graded.points == points
    hints = [part.hint for part in graded.parts if part.hint]
    assert len(hints) == sum(part.points < part.of for part in graded.parts)
    assert (hint in hints[0]) if hint else hints == []
    assert sum(part.of for part in graded.parts) == 100


def test_all_ranks_may_be_said_by_name_or_number() -> None:
    fault = parse_fault("data-stall,ms=60")
    answers = [MysteryAnswer(cause="data-stall", ms=60, ranks=ranks) for ranks in (None, (0, 1))]
    assert [grade(fault, answer, 2).points for answer in answers] == [100, 100]
    few = grade(fault, MysteryAnswer(cause="data-stall", ms=60, ranks=(0,)), 2)
    assert [part.hint[:10] for part in few.parts if part.hint] == ["more ranks"]


def test_of_two_causes_each_answer_counts_for_the_one_that_it_fits() -> None:
    faults = [parse_fault("data-stall,ms=60"), parse_fault("pause,ms=40,rank=1")]
    stall, pause = MysteryAnswer(cause="data-stall", ms=60), MysteryAnswer(cause="pause", ms=40, ranks=(1,))
    one = result(faults, [pause], 2)
    assert (one.points, one.missing) == (50, 1)
    assert result(faults, [pause, stall], 2).points == 100
    worse = result(faults, [stall, pause, stall.model_copy(update={"ms": 600})], 2)
    assert worse.points == 85, "the last answer counts"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cause": "data-stal"}, "--cause: there is no cause 'data-stal': did you mean data-stall?"),
        ({"cause": "xyz"}, "--cause: there is no cause 'xyz' (slurm.sh help faults lists all)"),
        ({"phase": "forwards"}, "--phase takes forward, backward, optimizer, not 'forwards': did you mean forward?"),
        ({"ranks": (0, 5)}, "--rank: there is no rank 5, the ranks are 0 to 1: the nearest is 1"),
        ({"ms": 0}, "--ms takes a number above 0, not 0"),
        ({"ms": float("nan")}, "--ms takes a number above 0, not nan"),
        ({"ms": None}, "--ms is missing: the milliseconds that it takes in a step that it hits"),
        ({"step": 3}, "--step is for a mystery that hangs or dies: drop it"),
        ({"every": 0}, "--every takes a whole number ≥ 1, not 0; the nearest is 1"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_right_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        checked(RIGHT.model_copy(update=change), [STALL], 2)
    assert sentence in str(refused.value)


# ---- a run, answered and on a board


def made(root: Path, job_id: str, faults: tuple[str, ...], level: Level = 1) -> Run:
    run = completed(root, job_id, DDP(gpus_per_node=2, mystery=hidden(faults, level)))
    hide(run.path, faults)
    return Run(run.path)


def say(run: Run, *words: str) -> int:
    return main(["lesson", "mystery", "answer", str(run.path), *words])


def test_answers_are_kept_in_order_until_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    assert say(run, "--cause", "pause", "--ms", "60") == 0
    said = capsys.readouterr().out
    assert "answer 1 to 7: 60 of 100\n  ✗ cause    0 of 40  " in said
    assert "\n  ✓ ranks   15 of 15\n" in said
    first = answers_file(run.path).read_text()
    assert main(["lesson", "mystery", str(run.path)]) == 0
    shown_run = capsys.readouterr().out
    assert "7: a mystery of level 1: one cause, on all ranks" in shown_run
    assert "answer 1: pause --ms 60 --rank all --every 1" in shown_run
    assert "data-stall" not in shown_run
    assert say(run, "--cause", "data-stal", "--ms", "60") == 2
    assert answers_file(run.path).read_text() == first, "nothing was written"
    assert say(run, "--cause", "data-stall", "--ms", "60", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["answer"], shown["points"], shown["total"]) == (2, 100, 100)
    assert answers_file(run.path).read_text().startswith(first)
    assert main(["lesson", "mystery", "reveal", str(run.path), "--no-run"]) == 0
    assert "it was  data-stall,ms=60" in capsys.readouterr().out
    assert say(run, "--cause", "data-stall", "--ms", "60") == 2
    assert "was revealed, so no further answer counts" in capsys.readouterr().err
    assert [line.answer and line.answer.cause for line in read_answers(answers_file(run.path))] == [
        "pause", "data-stall", None,
    ]  # fmt: skip


def test_the_last_answer_may_ask_for_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    assert say(run, "--cause", "data-stall", "--ms", "60", "--reveal", "--no-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["faults"], told["points"], told["without"]) == (["data-stall,ms=60"], 100, None)
    assert revealed_file(run.path).is_file()


def test_what_is_no_mystery_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = completed(tmp_path, "7", DDP())
    assert say(run, "--cause", "pause", "--ms", "5") == 2
    assert "RUN: 7 is not a mystery: start one with slurm.sh lesson mystery -e 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["anwser", "last"], "there is no part 'anwser': did you mean answer?"),
        (["-e", "1", "--level", "3"], "--level takes 1 or 2, not '3'"),
        (["-e", "1", "--kind", "hangs"], "--kind takes slow, hang or crash, not 'hangs': did you mean hang?"),
        (["-e", "1", "--kind", "crash", "-g", "1"], "--kind crash: a single rank waits for no other rank"),
        (["-e", "1", "--seed", "x"], "--seed takes a whole number ≥ 0, not 'x'"),
        (["-e", "1", "--fault", "pause,ms=5"], "--fault: a mystery draws its own faults: drop it"),
        (["-e", "1", "--no-profile"], "--no-profile: the cause is found in a trace"),
        (["-e", "1", "--profiler", "none"], "--no-profile: the cause is found in a trace"),
        (["-e", "1", "--script", "train_todo.py"], "--script: a mystery runs the exercise's own script"),
        (["-e", "0"], "-e 0: a mystery is a training: use -e 1, -e 2 or -e 3"),
        (["--level", "2"], "-e/--exercise is missing"),
        (["-e", "3", "--engine", "megatron-lm"], "--engine megatron-lm: a mystery needs the harness's own"),
        (["class", "nowhere"], "nowhere: there is no such file or folder"),
        (["class", "."], "has no answer to a mystery: students hand in the file mystery-answers.jsonl"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    monkeypatch.setenv("HARNESS_SITE", "local")
    assert main(["lesson", "mystery", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exercise", ["1", "2", "3"])
def test_a_job_s_script_does_not_tell(exercise: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--site", "local", "-g", "2", "--dry-run")
    words = ["lesson", "mystery", "-e", exercise, "--level", "2", "--seed", "4", *at]
    assert main(words) == 0
    script = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told_as_json = capsys.readouterr().out
    assert HIDDEN_FILE not in json.loads(told_as_json)["files"]
    for text in (script, told_as_json):
        assert "--fault" not in text
        assert not [name for name in FAULTS if f"{name},ms=" in text]


def line_of(
    student: str, faults: tuple[str, ...], answer: MysteryAnswer | None, run: str = "r", level: Level = 1
) -> AnswerLine:
    return AnswerLine(
        unix_ns=time.time_ns(), student=student, run=run, exercise=1, world_size=2,
        mystery=hidden(faults, level), please_do_not_look=faults, answer=answer,
    )  # fmt: skip


def test_the_board_grades_anew_and_counts_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = ("data-stall,ms=60",)
    right, wrong = MysteryAnswer(cause="data-stall", ms=60), MysteryAnswer(cause="pause", ms=60)
    said = {"ann": [wrong, right], "bo": [wrong, wrong, None, right], "cy": [right]}
    for student, answers in said.items():
        for answer in answers:
            (tmp_path / student).mkdir(exist_ok=True)
            add_answer(tmp_path / student, line_of(student, secret, answer))
    board = read_board(answer_files([tmp_path, tmp_path / "ann"]))
    assert [(row.student, row.points, row.tries, row.revealed) for row in board.rows] == [
        ("ann", 100, 2, False), ("bo", 60, 2, True), ("cy", 100, 1, False),
    ]  # fmt: skip
    assert len({row.mystery for row in board.rows}) == 1, "all had the same one"
    (mistake,) = board.mistakes
    assert (mistake.said, mistake.instead_of, mistake.students, mistake.times) == ("pause", "data-stall", 2, 3)
    assert main(["lesson", "mystery", "class", str(tmp_path)]) == 0
    assert "pause instead of data-stall: 3 × by 2 students" in capsys.readouterr().out
    assert main(["lesson", "mystery", "class", str(tmp_path), "--json"]) == 0
    assert [row["points"] for row in json.loads(capsys.readouterr().out)["rows"]] == [100, 60, 100]


def test_the_board_has_a_row_for_each_student_also_where_their_answers_are_mixed(tmp_path: Path) -> None:
    right, wrong = MysteryAnswer(cause="data-stall", ms=60), MysteryAnswer(cause="pause", ms=60)
    for student, answer in (("bo", wrong), ("ann", right), ("bo", right)):
        add_answer(tmp_path, line_of(student, ("data-stall,ms=60",), answer))
    rows = read_board(answer_files([tmp_path])).rows
    assert [(row.student, row.points, row.tries) for row in rows] == [("ann", 100, 1), ("bo", 100, 2)]


@pytest.mark.parametrize(
    ("faults", "note"), [(("pause,ms=5",), "its faults were changed"), ((), "an earlier version sealed its faults")]
)
def test_the_board_gives_no_points_for_other_faults(tmp_path: Path, faults: tuple[str, ...], note: str) -> None:
    line = line_of("ann", ("data-stall,ms=60",), MysteryAnswer(cause="pause", ms=5))
    add_answer(tmp_path, line.model_copy(update={"please_do_not_look": faults}))
    (row,) = read_board(answer_files([tmp_path])).rows
    assert row.points is None
    assert note in row.note


def test_every_training_can_be_a_mystery() -> None:
    for cls in (DDP, DeepSpeed, Megatron):
        asked = cls(gpus_per_node=2, mystery=hidden(("pause,ms=5",)))
        again = cls.model_validate_json(asked.model_dump_json())
        assert again.mystery == asked.mystery.model_copy(update={"faults": ()})
