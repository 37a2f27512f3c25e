"""Runs held against a stored reference: each planted damage is caught, the same is the same, and what cannot be told is
said to be that; a lesson's answer from one, and a recording by its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary.problem_texts import UNEVEN
from harness.common.errors import RequestError
from harness.compare.arms import Arm
from harness.compare.comparison import Comparison, compare_arms, samples
from harness.compare.verdict import ChangeVerdict
from harness.experiment.exercises import DDP
from harness.study.reference.check import VariantOutcome
from harness.study.reference.record import keep
from harness.study.reference.request import checked_reference, checked_runs, likely_reasons
from harness.study.reference.stored import read_reference, variant_file
from harness.study.reference.variants import series_of
from tests.study.kit import Say
from tests.study.reference_runs import VERSIONS, made_run, plan, recorded, run_all, two

ASKED = DDP(gpus_per_node=2)
MS = 1_000_000
pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def then(runs: Path) -> Path:
    """The folder of a stored reference."""
    return recorded(runs, "then").folder


NOTHING = "no recorded difference: hardware, software, the harness and the settings are the same"


CODES = {VariantOutcome.SAME: 0, VariantOutcome.MOVED: 1, VariantOutcome.NOT_COMPARABLE: 3}
NEWER = VERSIONS | {"torch": "2.14.0+cpu"}


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize(
    ("now", "outcome", "reasons"),
    [
        ({"factor": 1.002}, VariantOutcome.SAME, []),
        ({"factor": 1.3}, VariantOutcome.MOVED, [NOTHING]),
        ({"factor": 0.8}, VariantOutcome.MOVED, [NOTHING]),
        ({"factor": 1.5, "versions": NEWER}, VariantOutcome.NOT_COMPARABLE, ["torch: 2.13.0+cpu → 2.14.0+cpu"]),
        ({"all_reduce_count": 5}, VariantOutcome.MOVED, [NOTHING]),
        ({"all_reduce_count": 5, "doubts": [UNEVEN]}, VariantOutcome.SAME, []),
    ],
)
def test_a_reference_that_is_recorded_again_has_moved_or_not(
    runs: Path, now: dict[str, Any], outcome: VariantOutcome, reasons: list[str]
) -> None:
    found = checked_reference(recorded(runs, "now", **now).folder, "then")
    assert {each.variant: each.outcome for each in found.variants} == {"plain": outcome, "slow": outcome}
    assert (found.exit_code, likely_reasons(found)) == (CODES[outcome], reasons)
    plain = found.variants[0]
    assert plain.time is not None and plain.time.ratio == pytest.approx(now.get("factor", 1.0), rel=1e-3)


STALLED = DDP(gpus_per_node=2, faults=("data-stall,ms=40",))
ELSEWHERE = {"step_ms": 300.0, "submit_host": "another"}


@pytest.mark.usefixtures("then")
@pytest.mark.parametrize(
    ("new", "code", "said"),
    [
        ({"experiment": STALLED, "step_ms": 140.0}, 1, "has faults data-stall,ms=40, the reference none"),
        ({"step_ms": 150.0}, 1, "worse"),
        (ELSEWHERE, 3, "hardware or software differ; counts and bytes are the same"),
        (ELSEWHERE, 3, "Likely reason - another machine: "),
        (ELSEWHERE | {"all_reduce_bytes": 5_000_000}, 1, "all_reduce_bytes 4.00 MB → 5.00 MB"),
        (ELSEWHERE | {"doubts": ("others used the cores",)}, 3, "others used the cores (of local-9)"),
    ],
)
def test_a_run_is_held_against_the_runs_of_its_settings(
    runs: Path, say: Say, new: dict[str, Any], code: int, said: str
) -> None:
    asked: dict[str, Any] = {"experiment": ASKED, **new}
    made_run(runs, **asked)
    shown = say("reference", "check")
    assert shown.code == code and said in shown.words, shown.out
    document = say("reference", "check", "last", "--json")
    assert (document.code, document.json["reference"]) == (code, "then")


@pytest.mark.usefixtures("then")
def test_a_variant_whose_runs_fall_into_two_groups_says_so_before_its_verdict(runs: Path, say: Say) -> None:
    new = [made_run(runs, ASKED, ms).job_id for ms in (100.0, 180.0, 181.0, 100.5, 180.5, 179.0, 99.5, 180.0)]
    shown = say("reference", "check", *new)
    sentence = "this variant falls into two groups: 3 of 8 runs take 100 ms, 5 take 180 ms; a step is worse"
    assert f"moved: {new[0]} (plain): {sentence}" in shown.words, shown.out


def test_an_edited_file_of_a_reference_is_caught(then: Path, runs: Path) -> None:
    path = variant_file(then, "slow")
    path.write_text(path.read_text(encoding="utf-8").replace("180000000", "280000000"), encoding="utf-8")
    found = checked_reference(recorded(runs, "now").folder, "then")
    assert [each.outcome for each in found.variants] == [VariantOutcome.SAME, VariantOutcome.DAMAGED]
    assert "was changed after it was recorded" in found.variants[1].problems[0] and found.exit_code == 1


def test_a_run_of_the_reference_itself_is_compared_with_the_others(runs: Path, then: Path) -> None:
    run = sorted(runs.glob("exercise_1_DDP/profiler/*"))[0]
    assert checked_runs([str(run)], "then").variants[0].runs == (3, 1)


def test_a_run_without_a_like_variant_names_the_nearest_and_what_differs(runs: Path, then: Path) -> None:
    run = made_run(runs, DDP(gpus_per_node=2, mixed_precision=True), 100.0)
    with pytest.raises(RequestError, match=r"nearest is plain of then \(mixed_precision False, here True\)"):
        checked_runs([run.job_id], "then")


def test_a_variant_that_was_not_run_again_cannot_be_told(runs: Path, then: Path) -> None:
    now = recorded(runs, "now").folder
    index = json.loads((now / "reference.json").read_text(encoding="utf-8"))
    (now / "reference.json").write_text(json.dumps(index | {"variants": index["variants"][:1]}), encoding="utf-8")
    found = checked_reference(now, "then")
    assert (found.outcome, found.missing, found.exit_code) == (VariantOutcome.UNKNOWN, ["slow"], 3)


@pytest.mark.parametrize(
    ("stored", "new", "verdict"),
    [
        ((100, 101, 99, 100), (100, 101, 100, 99), ChangeVerdict.SAME),
        ((100, 101, 99, 100), (112, 110, 111, 112), ChangeVerdict.WORSE),
        ((100, 101, 99, 100), (90, 91, 89, 90), ChangeVerdict.BETTER),
        ((100, 101, 99, 100), (103, 102, 103, 102), ChangeVerdict.SAME),
        ((100, 140, 80, 100), (110, 150, 90, 105), ChangeVerdict.UNKNOWN),
        ((100, 101, 99, 100), (130,), ChangeVerdict.WORSE),
        ((100,), (130,), ChangeVerdict.UNKNOWN),
        ((), (130,), ChangeVerdict.UNKNOWN),
    ],
)
def test_a_step_moved_where_its_interval_and_its_ratio_say_so(
    stored: tuple[int, ...], new: tuple[int, ...], verdict: ChangeVerdict
) -> None:
    a, b = (Arm("", samples([ms * MS for ms in arm])) for arm in (stored, new))
    assert compare_arms("mean_step_ns", a, b).verdict is verdict


def test_the_reference_that_is_named_is_the_one_else_the_newest(runs: Path) -> None:
    recorded(runs, "a")
    recorded(runs, "b")
    run = made_run(runs, ASKED, 100.0).job_id
    assert [checked_runs([run], named).reference for named in ("a", None)] == ["a", "b"]
    assert read_reference(runs / "references" / "b").created_ns > read_reference(runs / "references" / "a").created_ns


# ---- What is made of a reference


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
    assert told.out == (
        "plain  bash slurm.sh -e 1 -g 2   # 2 runs\nslow   bash slurm.sh -e 1 -g 2 -- --slow-dataloading   # 2 runs\n"
    )
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


# ---- One comparison


STEPS_MS = ((100.0, 100.4, 99.7, 100.1), (120.0, 120.5, 119.8, 120.2))


@pytest.fixture
def arms(runs: Path) -> tuple[list[str], list[str]]:
    """Four runs of a command and four that are slower by a fifth."""
    a, b = ([made_run(runs, DDP(gpus_per_node=2), ms).job_id for ms in arm] for arm in STEPS_MS)
    return a, b


def test_every_command_that_compares_runs_gives_the_same_keys_and_words(
    runs: Path, arms: tuple[list[str], list[str]], say: Say
) -> None:
    recorded(runs, "then")
    a, b = arms
    found = {
        "compare": say("compare", a[0], b[0], "--json").json["step_time"],
        "check": say("check", ",".join(a), ",".join(b), "--json").json,
        "reference": say("reference", "check", *b, "--against", "then", "--json").json["variants"][0]["time"],
        "lesson": say("lesson", "1a", "--reference", "then", "--json").json["step_time"],
    }
    for command, each in found.items():
        assert each.keys() >= Comparison.model_fields.keys() and each["verdict"] == "worse", command
        assert each["ratio"] == pytest.approx(1.8 if command == "lesson" else 1.2, abs=0.01), command
        assert each["low"] < each["ratio"] < each["high"] or each["noise"] == "steps", command
        assert {"name", "value", "n"} <= each["a"].keys() & each["b"].keys(), command
