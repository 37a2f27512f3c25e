"""Runs held against a stored reference: each planted damage is caught, the same is the same, and what cannot be told is
said to be that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.analysis.summary.problem_texts import UNEVEN
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.compare.arms import Arm
from harness.compare.comparison import compare_arms, samples
from harness.compare.verdict import ChangeVerdict
from harness.experiment.exercises import DDP
from harness.study.reference.check import ReferenceCheck, VariantOutcome
from harness.study.reference.request import checked_reference, checked_runs, likely_reasons
from harness.study.reference.stored import read_reference, variant_file
from tests.study.recorded_reference import recorded
from tests.study.reference_runs import VERSIONS, alone, made_run

ASKED = DDP(gpus_per_node=2)
MS = 1_000_000


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone(tmp_path, monkeypatch)


def outcomes(found: ReferenceCheck) -> dict[str, VariantOutcome]:
    return {each.variant: each.outcome for each in found.variants}


def test_the_same_runs_again_are_the_same(root: Path) -> None:
    recorded(root, "then")
    found = checked_reference(recorded(root, "now", factor=1.002).folder, "then", whole=True)
    assert outcomes(found) == {"plain": VariantOutcome.SAME, "slow": VariantOutcome.SAME}
    assert found.exit_code == 0
    assert likely_reasons(found) == []


def test_slower_runs_are_caught_with_the_part_that_grew(root: Path) -> None:
    recorded(root, "then")
    found = checked_reference(recorded(root, "now", factor=1.3).folder, "then", whole=False)
    plain = found.variants[0]
    assert (plain.outcome, found.exit_code) == (VariantOutcome.MOVED, 1)
    assert plain.time is not None
    assert plain.time.verdict is ChangeVerdict.WORSE
    assert plain.time.ratio == pytest.approx(1.3)
    assert plain.part is not None
    assert plain.part[0] == "compute"
    assert likely_reasons(found) == [
        "no recorded difference: hardware, software, the harness and the settings are the same"
    ]


def test_faster_runs_have_moved_too(root: Path) -> None:
    recorded(root, "then")
    found = checked_reference(recorded(root, "now", factor=0.8).folder, "then", whole=False)
    assert {each.time.verdict for each in found.variants if each.time} == {ChangeVerdict.BETTER}


def test_a_changed_version_is_named_and_no_time_is_judged_across_it(root: Path) -> None:
    recorded(root, "then")
    newer = recorded(root, "now", factor=1.5, versions=VERSIONS | {"torch": "2.14.0+cpu"})
    found = checked_reference(newer.folder, "then", whole=False)
    assert outcomes(found) == {"plain": VariantOutcome.NOT_COMPARABLE, "slow": VariantOutcome.NOT_COMPARABLE}
    assert found.exit_code == 3
    assert likely_reasons(found) == ["torch: 2.13.0+cpu → 2.14.0+cpu"]
    assert found.variants[0].time is not None
    assert found.variants[0].time.verdict is ChangeVerdict.NOT_COMPARABLE
    assert found.variants[0].time.ratio == pytest.approx(1.5)


@pytest.mark.parametrize("whole", [False, True])
def test_a_truncated_trace_is_caught(root: Path, whole: bool) -> None:
    folder = recorded(root, "then").folder
    trace = next(root.glob("exercise_1_DDP/profiler/*/torch/rank1.json.gz"))
    trace.write_bytes(trace.read_bytes()[:100])
    found = checked_reference(folder, None, whole)
    assert (found.outcome, found.exit_code) == (VariantOutcome.DAMAGED, 1)
    problems = [problem for each in found.variants for problem in each.problems]
    assert len(problems) == 1
    assert problems[0].startswith("trace truncated: exercise_1_DDP/profiler/")
    assert "has 100 of " in problems[0]


def test_a_trace_that_was_changed_at_the_same_size_is_caught_by_its_checksum_alone(root: Path) -> None:
    folder = recorded(root, "then").folder
    trace = next(root.glob("exercise_1_DDP/profiler/*/torch/rank0.json.gz"))
    trace.write_bytes(b"x" + trace.read_bytes()[1:])
    assert checked_reference(folder, None, whole=False).exit_code == 0
    assert checked_reference(folder, None, whole=True).exit_code == 1


def test_an_edited_summary_is_caught(root: Path) -> None:
    folder = recorded(root, "then").folder
    path = variant_file(folder, "slow")
    path.write_text(path.read_text(encoding="utf-8").replace("180000000", "280000000"), encoding="utf-8")
    found = checked_reference(folder, None, whole=False)
    assert outcomes(found) == {"plain": VariantOutcome.SAME, "slow": VariantOutcome.DAMAGED}
    assert "was changed after it was recorded" in found.variants[1].problems[0]


def test_a_fault_is_named_as_the_likely_reason(root: Path) -> None:
    recorded(root, "then")
    run = made_run(root, DDP(gpus_per_node=2, faults=("data-stall,ms=40",)), 140.0)
    found = checked_runs([run.job_id], None)
    assert found.exit_code == 1
    assert likely_reasons(found)[0] == f"{run.job_id} has faults data-stall,ms=40, the reference none"


def test_other_bytes_are_a_finding_even_of_one_run_on_another_machine(root: Path) -> None:
    recorded(root, "then")
    run = made_run(root, ASKED, 300.0, submit_host="another", all_reduce_bytes=5_000_000)
    found = checked_runs([run.job_id], "then")
    (only,) = found.variants
    assert only.outcome is VariantOutcome.MOVED
    assert {each.name for each in only.changed} == {"all_reduce_bytes", "message_bytes"}
    assert {each.name for each in found.key} == {"machine"}
    assert only.time is not None
    assert only.time.verdict is ChangeVerdict.NOT_COMPARABLE


def test_counts_of_ranks_that_were_not_profiled_over_the_same_steps_are_not_judged(root: Path) -> None:
    recorded(root, "then")
    assert checked_reference(recorded(root, "other", all_reduce_count=5).folder, "then", whole=False).exit_code
    uneven = recorded(root, "uneven", all_reduce_count=5, doubts=[UNEVEN])
    found = checked_reference(uneven.folder, "then", whole=False)
    assert outcomes(found)["plain"] is VariantOutcome.SAME


def test_the_same_counts_on_another_machine_are_said_and_its_times_are_not_judged(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root, "then")
    run = made_run(root, ASKED, 300.0, submit_host="another")
    assert main(["reference", "check", run.job_id]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "hardware or software differ; counts and bytes are the same" in said
    assert "Likely reason - another machine: " in said


def test_one_run_is_judged_by_how_much_the_stored_runs_differ(root: Path) -> None:
    recorded(root, "then")
    assert checked_runs([made_run(root, ASKED, 150.0).job_id], "then").exit_code == 1
    assert checked_runs([made_run(root, ASKED, 100.2).job_id], "then").exit_code in (0, 3)


def test_a_run_of_the_reference_itself_is_compared_with_the_others(root: Path) -> None:
    recorded(root, "then")
    run = sorted(root.glob("exercise_1_DDP/profiler/*"))[0]
    assert checked_runs([str(run)], "then").variants[0].runs == (3, 1)


def test_a_run_without_a_like_variant_names_the_nearest_and_what_differs(root: Path) -> None:
    recorded(root, "then")
    run = made_run(root, DDP(gpus_per_node=2, mixed_precision=True), 100.0)
    with pytest.raises(RequestError, match=r"nearest is plain of then \(mixed_precision False, here True\)"):
        checked_runs([run.job_id], "then")


def test_a_variant_that_was_not_run_again_cannot_be_told(root: Path) -> None:
    recorded(root, "then")
    now = recorded(root, "now").folder
    index = json.loads((now / "reference.json").read_text(encoding="utf-8"))
    index["variants"] = index["variants"][:1]
    (now / "reference.json").write_text(json.dumps(index), encoding="utf-8")
    found = checked_reference(now, "then", whole=False)
    assert (found.outcome, found.missing, found.exit_code) == (VariantOutcome.UNKNOWN, ["slow"], 3)


def test_a_reference_is_not_compared_with_itself(root: Path) -> None:
    folder = recorded(root, "then").folder
    with pytest.raises(RequestError, match="--against then: is the checked reference itself"):
        checked_reference(folder, "then", whole=False)


def test_a_mystery_is_compared_with_nothing(root: Path) -> None:
    from harness.experiment.training import Mystery

    recorded(root, "then")
    run = made_run(root, DDP(gpus_per_node=2, mystery=Mystery(level=1, commitment="0" * 64)), 140.0)
    with pytest.raises(RequestError, match=r"is a mystery: .*mystery reveal"):
        checked_runs([run.job_id], "then")


def test_the_last_run_is_checked_where_none_is_named_and_json_has_the_reasons(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root, "then")
    made_run(root, ASKED, 100.0, doubts=("others used the cores while this was measured",), submit_host="b")
    assert main(["reference", "check", "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["reference"] == "then"
    assert [reason.partition(":")[0].partition(" (")[0] for reason in said["likely"]] == [
        "another machine",
        "others used the cores while this was measured",
    ]


def test_without_any_reference_of_the_site_a_reference_is_checked_alone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root, "then")
    assert main(["reference", "check", "then"]) == 0
    assert capsys.readouterr().out.startswith("same: then as it was recorded")


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


def test_the_reference_that_is_named_is_the_one(root: Path) -> None:
    recorded(root, "a")
    recorded(root, "b")
    run = made_run(root, ASKED, 100.0)
    assert checked_runs([run.job_id], "a").reference == "a"
    assert checked_runs([run.job_id], None).reference == "b"
    assert read_reference(root / "references" / "b").created_ns > read_reference(root / "references" / "a").created_ns
