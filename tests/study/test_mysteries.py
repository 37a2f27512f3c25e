"""Mysteries: drawn from a seed so that they show, hidden from every report, answered once and revealed."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from harness.analysis.summary import JobTime, Replay, Summary, TimeLost, WhatIf
from harness.common.errors import RequestError
from harness.common.faults.fault import FAULTS, Setup, faults_file, misfits, parse_fault, wrong_device
from harness.common.faults.mystery import HIDDEN_FILE, checksum, hidden_faults, hidden_file, hidden_text, is_mystery
from harness.experiment.exercises import DDP, Megatron, as_recorded
from harness.experiment.model import find_model
from harness.experiment.parse import command_of
from harness.experiment.training import Mystery
from harness.explain.answer import answer as said_of
from harness.measure.jobs import without_diagnosis
from harness.run.mystery import MysteryAnswer, MysterySolution, revealed_file, write_revealed
from harness.study.lessons import find_pair, load_lesson
from harness.study.mysteries import Level, MysteryPlace, draw, faults_of, is_right, place_of, with_mystery
from tests.study.kit import Say, a_mystery, completed

TWO = MysteryPlace(Setup(1, 2, 2), "cpu", 100.0)
LEVELS: tuple[Level, ...] = (1, 2)
SEEDS = range(40)
STALL = ("data-stall,ms=60",)


def hidden(faults: tuple[str, ...], level: Level = 1) -> Mystery:
    return Mystery(level=level, commitment=checksum(faults), faults=faults)


# ---- drawing


@pytest.mark.parametrize("level", LEVELS)
def test_a_seed_draws_always_the_same_and_its_cost_shows_in_a_mean_step(level: Level) -> None:
    drawn = [draw(seed, level, TWO) for seed in SEEDS]
    assert drawn == [draw(seed, level, TWO) for seed in SEEDS] and len(set(drawn)) == len(SEEDS)
    faults = [parse_fault(text) for (text,) in drawn]
    assert all(0.15 <= fault.ns() / 1e8 / int(fault.values["every"]) <= 0.6 for fault in faults)
    on_all_ranks_in_each_step = [fault.rank is None and fault.values["every"] == "1" for fault in faults]
    assert all(on_all_ranks_in_each_step) if level == 1 else not any(on_all_ranks_in_each_step)


@pytest.mark.parametrize(("exercise", "ranks", "device"), [*product((1, 2, 3), (1, 2, 8), ("cpu", "cuda"))])
def test_what_is_drawn_works_there(exercise: int, ranks: int, device: str) -> None:
    setup = Setup(exercise, ranks, 2)
    for level, seed in product(LEVELS, SEEDS):
        (fault,) = map(parse_fault, draw(seed, level, MysteryPlace(setup, device, 100.0)))
        assert [*misfits([fault], setup), *wrong_device([fault], device)] == []


def test_every_fault_for_mysteries_is_drawn() -> None:
    drawn = {parse_fault(text).name for level in LEVELS for s in SEEDS for text in draw(s, level, TWO)}
    assert drawn == {name for name, kind in FAULTS.items() if kind.mystery}
    assert all(FAULTS[name].key("ms") is not None for name in drawn), "a step of it has one size"


def test_where_no_fault_works_a_lower_level_is_named() -> None:
    with pytest.raises(RequestError, match="--level 2: no fault works in this training: use --level 1"):
        draw(1, 2, MysteryPlace(Setup(9, 2), "cpu", 100.0))


def test_a_step_of_a_gpu_is_longer_for_more_work() -> None:
    asked = (DDP(gpus_per_node=2, micro_batch_size=size, seq_length=1024) for size in (2, 8))
    few, many = (place_of(each, "cuda", find_model("llama-3.2-1b")[0]).step_ms for each in asked)
    assert many == pytest.approx(4 * few)


# ---- hiding


def test_a_period_can_be_seen_unless_the_steps_were_asked_for() -> None:
    secret, two = ("pause,ms=5,every=3",), Megatron(gpus_per_node=2)
    sizes: list[tuple[Level, Megatron, int]] = [
        (2, Megatron(), 18), (2, Megatron(active_steps=9), 9), (1, Megatron(), Megatron().active_steps),
    ]  # fmt: skip
    for level, plain, steps in sizes:
        assert with_mystery(plain, level, secret, two).active_steps == steps
    with pytest.raises(RequestError, match="the nearest is --active-steps 9"):
        with_mystery(Megatron(active_steps=8), 2, secret, two)
    asked = with_mystery(Megatron(), 2, secret, two)
    assert (
        asked.name("m")[1].endswith("-mystery2")
        and "pause" not in f"{asked.name('m')}{asked.model_dump_json()}{asked!r}"
    )


def test_no_flags_ask_for_a_mystery_and_no_lesson_takes_its_run(runs: Path) -> None:
    asked = DDP(mystery=hidden(("pause,ms=5",)))
    assert command_of(asked) is None
    plain, _ = there = [completed(runs, "1", DDP()), completed(runs, "2", asked)]
    assert find_pair(load_lesson("1a").pair(cpu=True), there).a == plain


def told() -> Summary:
    """A summary with a diagnosis."""
    lost = TimeLost(cause="data-stall", ranks=[0], lost_ns=5, low_ns=4, high_ns=6, share=0.5, evidence="60 ms")
    change = WhatIf(name="no-data-stall", meaning="no waiting", step_ns=5, low_ns=4, high_ns=6, gain=0.5)
    replay = Replay(steps=9, processes=2, step_ns=10, replayed_ns=10, error=0.0, what_ifs=[change])
    return Summary(findings=[lost], replay=replay, run={"job_id": "local-7"})


@pytest.mark.parametrize("kept", ["record", "file"])
def test_a_mystery_s_summary_has_no_diagnosis(tmp_path: Path, kept: str) -> None:
    """Also where its record was damaged: the hidden faults still lie there."""
    folder = a_mystery(tmp_path, "7", STALL).path if kept == "file" else tmp_path
    asked = DDP(mystery=hidden(STALL)) if kept == "record" else None
    known = {"experiment": as_recorded(asked), "job_time": JobTime(elapsed_ns=1, useful_share=0.0)}
    summary = without_diagnosis(told().model_copy(update=known), folder)
    assert "data-stall" not in summary.model_dump_json() and summary.job_time is None
    assert [w.field for w in summary.quality.withheld] == ["findings", "replay.what_ifs", "job_time"]
    shown = said_of(summary)
    assert "This run is a mystery" in shown.sentences[0]
    assert shown.command and "mystery answer local-7" in shown.command


def test_a_file_with_the_faults_ends_it_and_no_other(tmp_path: Path) -> None:
    summary = told().model_copy(update={"experiment": as_recorded(DDP(mystery=hidden(STALL)))})
    assert without_diagnosis(summary, tmp_path).findings == []
    revealed_file(tmp_path).write_text("{}")
    assert without_diagnosis(summary, tmp_path).findings == []
    write_revealed(tmp_path, MysterySolution(faults=STALL))
    assert without_diagnosis(summary, tmp_path) == summary
    assert without_diagnosis(told(), tmp_path) == told(), "other runs keep it"


HANG = ("hang,kind=lock,step=7,rank=1",)


@pytest.mark.parametrize(
    ("drawn", "faults", "sentence"),
    [
        (("pause,ms=5",), ("pause,ms=6",), "its faults were changed after the run"),
        (("pause,ms=5",), (), "its hidden file with the faults is not in the run"),
        (HANG, HANG, "hang is drawn for none"),
    ],
)
def test_a_mystery_whose_faults_are_others_or_unknown_is_not_opened(
    drawn: tuple[str, ...], faults: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence):
        faults_of(hidden(drawn).model_copy(update={"faults": faults}))


@pytest.mark.parametrize("path", ["run", "run.json"])
def test_a_mystery_is_launched_again_only_where_its_faults_are(runs: Path, path: str, say: Say) -> None:
    run = a_mystery(runs, "7", STALL)
    words = ["run", str(run.path if path == "run" else run.record_file), "--dry-run", "--json"]
    said = say(*words)
    assert said.code == 0 and "data-stall" not in said.out
    hidden_file(run.path).unlink()
    said = say(*words)
    assert said.code == 2 and "its faults are not in its run.json: bash slurm.sh lesson mystery -e 1 starts" in said.err


SECRET = ("data-stall,ms=61.7,rank=1", "crash,kind=gone,step=5")


def test_the_file_of_the_faults_is_hidden_and_says_what_it_is_before_it_says_the_faults(tmp_path: Path) -> None:
    assert any(part.startswith(".") for part in hidden_file(tmp_path).relative_to(tmp_path).parts)
    assert "do-not-look" in hidden_file(tmp_path).name
    first, *_ = hidden_text(SECRET).splitlines()
    assert first.startswith("Please do not look") and "lesson mystery reveal" in first
    assert not [fault for fault in SECRET if fault in first]


def test_what_is_hidden_is_read_back(tmp_path: Path) -> None:
    assert (is_mystery(tmp_path), hidden_faults(tmp_path)) == (False, ())
    assert faults_file(tmp_path, 1) == tmp_path / "faults" / "rank1.jsonl"
    hidden_file(tmp_path).parent.mkdir()
    hidden_file(tmp_path).write_text(hidden_text(SECRET))
    assert (is_mystery(tmp_path), hidden_faults(tmp_path)) == (True, SECRET)
    assert faults_file(tmp_path, 1).parent == hidden_file(tmp_path).parent, "what was injected is hidden too"


def test_the_checksum_is_that_of_all_faults_in_their_order() -> None:
    assert checksum(SECRET) == checksum(list(SECRET))
    assert len({checksum(faults) for faults in (SECRET, SECRET[::-1], SECRET[:1], ())}) == 4


# ---- answered


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


def test_a_mystery_takes_one_answer_and_tells_the_cause_at_its_end(runs: Path, say: Say) -> None:
    a_mystery(runs, "7", STALL)
    answer, reveal = ("lesson", "mystery", "answer", "7"), ("lesson", "mystery", "reveal", "7")
    said = say(*answer, "--cause", "pause", "--rank", "1")
    assert said[:2] == (0, "not right: pause on rank 1\nnext: bash slurm.sh lesson mystery reveal 7\n")
    said = say(*answer, "--cause", "data-stall")
    assert said.code == 2
    assert "7 has its one answer, pause on rank 1: bash slurm.sh lesson mystery reveal 7 ends it" in said.err
    shown = say(*reveal).out
    assert shown.startswith("mystery 7, level 1: not right: pause on rank 1\n  it was  data-stall,ms=60: ")
    assert shown.endswith("without it: bash slurm.sh -e 1 -g 2 --site local\nnext: bash slurm.sh compare 7 last\n")
    found = say(*reveal, "--json").json
    assert (found["faults"], found["answer"]) == (["data-stall,ms=60"], {"cause": "pause", "ranks": [1]})
    a_mystery(runs, "8", STALL)
    right = say("lesson", "mystery", "answer", "8", "--cause", "data-stall", "--json").json
    assert right == {"run": "8", "cause": "data-stall", "ranks": None, "right": True}
    a_mystery(runs, "9", STALL)
    assert say("lesson", "mystery", "reveal", "9").out.startswith("mystery 9, level 1: no answer\n")
    said = say("lesson", "mystery", "answer", "9", "--cause", "data-stall")
    assert said.code == 2 and "was revealed, so it takes no answer" in said.err


@pytest.mark.parametrize("exercise", ["1", "2", "3"])
def test_a_job_s_script_does_not_tell(exercise: str, say: Say) -> None:
    at = ("--site", "local", "-g", "2", "--dry-run")
    words = ["lesson", "mystery", "-e", exercise, "--level", "2", "--seed", "4", *at]
    script, document = say(*words), say(*words, "--json")
    assert (script.code, HIDDEN_FILE in document.json["files"]) == (0, False)
    telling = ["--fault", *(f"{name},ms=" for name in FAULTS)]
    assert [word for word in telling if word in script.out + document.out] == []
