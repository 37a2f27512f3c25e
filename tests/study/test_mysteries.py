"""Mysteries: drawn from a seed so that they show, hidden from every report, answered once and revealed."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from harness.analysis.summary import JobTime, Replay, Summary, TimeLost, WhatIf
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.common.faults import FAULTS, Setup, misfits, parse_fault, wrong_device
from harness.common.mystery import HIDDEN_FILE, checksum, hidden_file, hidden_text
from harness.experiment.exercises import DDP, DeepSpeed, Megatron, as_recorded
from harness.experiment.parse import command_of
from harness.experiment.training import Mystery
from harness.explain.answer import answer as said_of
from harness.measure.jobs import without_diagnosis
from harness.run import Run
from harness.run.mystery import MysteryAnswer, MysterySolution, read_answer, revealed_file, write_revealed
from harness.study.lessons import find_pair, load_lesson
from harness.study.mysteries import Level, MysteryPlace, draw, faults_of, is_right, place_of, with_mystery
from tests.study.test_lessons import completed

TWO = MysteryPlace(Setup(1, 2, 2), "cpu", 100.0)
LEVELS: tuple[Level, ...] = (1, 2)
SEEDS = range(40)


def hidden(faults: tuple[str, ...], level: Level = 1) -> Mystery:
    return Mystery(level=level, commitment=checksum(faults), faults=faults)


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
    setup = Setup(exercise, ranks, 2)
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
    assert all(FAULTS[name].key("ms") is not None for name in drawn), "a step of it has one size"


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
    known = {"experiment": as_recorded(asked), "job_time": JobTime(elapsed_ns=1, useful_share=0.0)}
    summary = without_diagnosis(told().model_copy(update=known), tmp_path)
    assert "data-stall" not in summary.model_dump_json()
    assert [w.field for w in summary.quality.withheld] == ["findings", "replay.what_ifs", "job_time"]
    assert summary.job_time is None
    shown = said_of(summary)
    assert "This run is a mystery" in shown.sentences[0]
    assert shown.command and "mystery answer local-7" in shown.command


def test_a_file_with_the_faults_ends_it_and_no_other(tmp_path: Path) -> None:
    asked = DDP(mystery=hidden(("data-stall,ms=60",)))
    summary = told().model_copy(update={"experiment": as_recorded(asked)})
    assert without_diagnosis(summary, tmp_path).findings == []
    revealed_file(tmp_path).write_text("{}")
    assert without_diagnosis(summary, tmp_path).findings == []
    write_revealed(tmp_path, MysterySolution(faults=("data-stall,ms=60",)))
    assert without_diagnosis(summary, tmp_path) == summary


def test_other_runs_keep_their_diagnosis(tmp_path: Path) -> None:
    assert without_diagnosis(told(), tmp_path) == told()


HANG = ("hang,kind=lock,step=7,rank=1",)


@pytest.mark.parametrize(
    ("drawn", "faults", "sentence"),
    [
        (("pause,ms=5",), ("pause,ms=6",), "its faults were changed after the run"),
        (("pause,ms=5",), (), "an earlier version sealed its faults: use that one (commit in run.json)"),
        (HANG, HANG, "hang is drawn for none"),
    ],
)
def test_a_mystery_whose_faults_are_others_or_unknown_is_not_opened(
    drawn: tuple[str, ...], faults: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RequestError) as refused:
        faults_of(hidden(drawn).model_copy(update={"faults": faults}))
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
    of_old = told().model_copy(update={"experiment": as_recorded(old.record.experiment)})
    assert without_diagnosis(of_old, old.path).findings == []
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


# ---- answered


def made(root: Path, job_id: str, faults: tuple[str, ...], level: Level = 1) -> Run:
    run = completed(root, job_id, DDP(gpus_per_node=2, mystery=hidden(faults, level)))
    hide(run.path, faults)
    return Run(run.path)


def say(run: Run, *words: str) -> int:
    return main(["lesson", "mystery", "answer", str(run.path), *words])


@pytest.mark.parametrize(
    ("fault", "answer", "right"),
    [
        ("data-stall,ms=60", MysteryAnswer(cause="data-stall"), True),
        ("data-stall,ms=60", MysteryAnswer(cause="data-stall", ranks=(0, 1)), True),
        ("data-stall,ms=60", MysteryAnswer(cause="data-stall", ranks=(0,)), False),
        ("data-stall,ms=60", MysteryAnswer(cause="pause"), False),
        ("pause,ms=40,rank=1,every=3", MysteryAnswer(cause="pause", ranks=(1,)), True),
        ("pause,ms=40,rank=1", MysteryAnswer(cause="pause"), False),
        ("pause,ms=40,rank=1", MysteryAnswer(cause="pause", ranks=(0,)), False),
    ],
)
def test_an_answer_is_right_if_its_cause_and_its_ranks_are(fault: str, answer: MysteryAnswer, right: bool) -> None:
    assert is_right(answer, [parse_fault(fault)], 2) is right


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cause", "data-stal"], "--cause: there is no cause 'data-stal': did you mean data-stall?"),
        (["--cause", "xyz"], "--cause: there is no cause 'xyz' (slurm.sh help faults lists all)"),
        (["--cause", "pause", "--rank", "0,5"], "--rank: there is no rank 5, the ranks are 0 to 1: the nearest is 1"),
        (["--cause", "pause", "--rank", "x"], "--rank takes all, or ranks as in 0,3, not 'x'"),
    ],
)
def test_an_answer_that_cannot_be_right_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    assert say(run, *words) == 2
    assert sentence in capsys.readouterr().err
    assert read_answer(run.path) is None


def test_a_mystery_takes_one_answer_and_tells_the_cause_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    assert say(run, "--cause", "pause", "--rank", "1") == 0
    assert capsys.readouterr().out == ("not right: pause on rank 1\nnext: bash slurm.sh lesson mystery reveal 7\n")
    assert say(run, "--cause", "data-stall") == 2
    assert "7 has its one answer, pause on rank 1: slurm.sh lesson mystery reveal 7 ends it" in capsys.readouterr().err
    assert main(["lesson", "mystery", "reveal", str(run.path), "--no-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("mystery 7, level 1: not right: pause on rank 1\n  it was  data-stall,ms=60: ")
    assert main(["lesson", "mystery", "reveal", str(run.path), "--no-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["faults"], told["right"], told["without"]) == (["data-stall,ms=60"], False, None)
    assert told["answer"] == {"cause": "pause", "ranks": [1]}


def test_after_its_end_it_takes_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    assert main(["lesson", "mystery", "reveal", str(run.path), "--no-run"]) == 0
    assert capsys.readouterr().out.startswith("mystery 7, level 1: no answer\n")
    assert say(run, "--cause", "data-stall") == 2
    assert "was revealed, so it takes no answer" in capsys.readouterr().err


def test_a_right_answer_is_right_also_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, "7", ("data-stall,ms=60",))
    assert say(run, "--cause", "data-stall", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"run": "7", "cause": "data-stall", "ranks": None, "right": True}


def test_what_is_no_mystery_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = completed(tmp_path, "7", DDP())
    assert say(run, "--cause", "pause") == 2
    assert "RUN: 7 is not a mystery: start one with slurm.sh lesson mystery -e 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["anwser", "last"], "there is no part 'anwser': did you mean answer?"),
        (["last"], "there is no part 'last' (slurm.sh help lesson mystery lists all); to start a mystery, begin with"),
        (["-e", "1", "--level", "3"], "--level takes 1 or 2, not '3'"),
        (["-e", "1", "--seed", "x"], "--seed takes a whole number ≥ 0, not 'x'"),
        (["-e", "1", "--fault", "pause,ms=5"], "--fault: a mystery draws its own faults: drop it"),
        (["-e", "1", "--no-profile"], "--no-profile: the cause is found in a trace"),
        (["-e", "1", "--profiler", "none"], "--no-profile: the cause is found in a trace"),
        (["-e", "1", "--script", "train_todo.py"], "--script: a mystery runs the exercise's own script"),
        (["-e", "0"], "-e 0: a mystery is a training: use -e 1, -e 2 or -e 3"),
        (["--level", "2"], "-e/--exercise is missing"),
        (["-e", "3", "--engine", "megatron-lm"], "--engine megatron-lm: a mystery needs the harness's own"),
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


def test_every_training_can_be_a_mystery() -> None:
    for cls in (DDP, DeepSpeed, Megatron):
        asked = cls(gpus_per_node=2, mystery=hidden(("pause,ms=5",)))
        again = cls.model_validate_json(asked.model_dump_json())
        assert again.mystery == asked.mystery.model_copy(update={"faults": ()})
