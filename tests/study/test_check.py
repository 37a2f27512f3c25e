"""`slurm.sh check`: which runs, in which order, and what it says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.cli.study.check import page
from harness.common.errors import RequestError, WorkError
from harness.experiment.exercises import DDP
from harness.launch.submit import Start
from harness.run import Run, all_runs
from harness.run.record import SeriesPart
from harness.site.site import load_site
from harness.study.check.series import ArmLaunch, arms_of_runs, block_of, slots, submitter_of, tasks_of
from tests.study.check_shared import Killed, stand_in_for_training, write_metrics
from tests.study.test_lessons import completed

A, B = "-e 1 -g 1 -- --no-profile", "-e 1 -g 1 -- --no-profile --micro-batch-size 1"
NOISE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, 0.0, -0.1)  # ms


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


def some_runs(root: Path, *times_ms: float, first: int = 1, **start: object) -> str:
    """Completed runs with such steps, as an arm's word."""
    for i, ms in enumerate(times_ms, first):
        write_metrics(completed(root, f"local-{i}", DDP()).path, ms, **start)
    return ",".join(f"local-{i}" for i in range(first, first + len(times_ms)))


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


# ---- The order


def test_the_order_is_abba_and_more_runs_keep_the_first_ones() -> None:
    assert "".join(slot.key for slot in slots(4)) == "abbabaab"
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(map(slots, range(1, 9))))
    assert len(set(slots(7))) == 14
    assert [block_of(slot.repeat) for slot in slots(4)] == [0] * 4 + [1] * 4


# ---- Runs that are there


@pytest.mark.parametrize(
    ("b", "code", "verdict"),
    [
        ((100.2, 100.0, 99.9, 100.1), 0, "same"),
        ((112, 111.5, 112, 111.8), 1, "worse"),
        ((90, 115, 103, 99), 3, "cannot tell"),
    ],
)
def test_the_exit_status_is_the_verdict(
    runs: Path, capsys: pytest.CaptureFixture[str], b: tuple[float, ...], code: int, verdict: str
) -> None:
    a = some_runs(runs, 100, 100.3, 99.8, 100.1)
    found = checked(capsys, a, some_runs(runs, *b, first=5))
    assert (found[0], found[1]["verdict"]) == (code, verdict)
    assert [run["value"] for run in found[1]["a"]["runs"]] == [100e6, 100.3e6, 99.8e6, 100.1e6]


def test_the_text_begins_with_the_verdict_and_ends_with_the_command_that_would_tell(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", some_runs(runs, 100, 103), some_runs(runs, 99, 104, first=3)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cannot tell: the interval contains both no change and a change of 5 %"
    assert any(re.match(r"  step time +101 ms +101 ms +\+\d\.\d % ± \d+\.\d % +cannot tell", line) for line in lines)
    assert main(["check", some_runs(runs, 100, 100.3, first=5), some_runs(runs, 112, 111.5, first=7)]) == 1
    assert re.search(r"\n  step time +100 ms +112 ms +\+11\.6 % ± \d\.\d % +worse\n", capsys.readouterr().out)
    assert re.search(r"^about \d+ runs of each would tell:$", lines[-2])
    assert re.search(r"^  slurm.sh check '-e 1' '-e 1' --runs \d+$", lines[-1])


def test_one_run_of_each_cannot_tell(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", some_runs(runs, 100), some_runs(runs, 200, first=2)]) == 3
    said = capsys.readouterr().out
    assert said.startswith("cannot tell: one run of each does not show how much runs vary")
    assert re.search(r"step time +100 ms +200 ms +\+100\.0 % +cannot tell\n", said) and "±" not in said


@pytest.mark.parametrize(
    ("start", "name", "b"),
    [
        ({"device_name": "another CPU"}, "devices", "1 × another CPU"),
        ({"versions": {"torch": "2.14.0"}}, "torch", "2.14.0"),
        ({"model": "other"}, "model", "other"),
    ],
)
def test_across_hardware_and_software_nothing_is_judged(
    runs: Path, capsys: pytest.CaptureFixture[str], start: dict[str, object], name: str, b: str
) -> None:
    a = some_runs(runs, 100, 100.3, 99.8)
    code, found = checked(capsys, a, some_runs(runs, 150, 150.3, 149.8, first=4, **start))
    assert (code, found["verdict"], found["needed_runs"]) == (3, "not comparable", None)
    assert [(row["name"], row["b"]) for row in found["key_differs"]] == [(name, b)]
    assert found["ratio"] == pytest.approx(1.5, abs=0.01)
    assert main(["check", a, "local-4,local-5"]) == 3
    assert "Not comparable: these differ" in capsys.readouterr().out


def test_what_only_some_runs_recorded_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = some_runs(runs, 100, 100.3, 99.8)
    _, found = checked(capsys, a, some_runs(runs, 100, 100.3, 99.8, first=4, host_cpu="x"))
    assert any("some runs did not record host processor" in note for note in found["notes"])


def test_a_change_that_hits_few_steps_is_not_hidden_by_the_median(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, 100.1, 100.2, 99.9, 100, first=5)
    for run in all_runs()[4:]:
        file = run.path / "metrics" / "rank0.jsonl"
        file.write_text(re.sub(r'"step_ns": \d+', '"step_ns": 300000000', file.read_text(), count=1))
    code, found = checked(capsys, a, b)
    assert code == 0 and any(
        "B's mean step is worse (" in note and "--metric mean_step_ns" in note for note in found["notes"]
    )
    assert checked(capsys, a, b, "--metric", "mean_step_ns")[0] == 1


def test_steps_with_other_numbers_of_tokens_are_judged_per_token(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, 200.2, 200.1, 199.7, 200, first=5)
    for run in all_runs()[4:]:
        file = run.path / "metrics" / "rank0.jsonl"
        file.write_text(file.read_text().replace('"tokens": 16', '"tokens": 32'))
    code, found = checked(capsys, a, b)
    assert (code, found["metric"]) == (0, "step_ns_per_token")
    assert "per token, since a step is not the same work: 16 and 32 tokens" in found["notes"]
    assert checked(capsys, a, b, "--metric", "tokens_per_s")[0] == 0


def test_runs_that_did_not_complete_are_left_out_and_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = some_runs(runs, 100, 100.3, 99.8), some_runs(runs, 100, 100.3, 99.8, first=4)
    failed = all_runs()[0]
    own = failed.status()
    assert own is not None
    failed.write_status(own.model_copy(update={"state": "failed"}))
    _, found = checked(capsys, a, b)
    assert [run["run"] for run in found["a"]["runs"]] == ["local-2", "local-3"]
    assert "local-1 is left out: it is not complete (failed)" in found["notes"]


def in_series(root: Path, number: int, point: str, series: str = "sweep-1") -> Run:
    run = completed(root, f"local-{number}", DDP())
    run.write_record(run.record.model_copy(update={"part": SeriesPart(series=series, point=point, repeat=number)}))
    write_metrics(run.path, 100 + number / 10)
    return run


def test_a_series_names_its_runs_and_one_with_several_settings_needs_the_setting(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, point in enumerate(("mbs=1", "mbs=1", "mbs=2", "mbs=2")):
        in_series(runs, number, point)
    in_series(runs, 9, "x", "alone")
    a, b = arms_of_runs(("sweep-1:mbs=1", "alone"))
    assert [[run.name for run in arm.runs] for arm in (a, b)] == [["local-0", "local-1"], ["local-9"]]
    with pytest.raises(RequestError, match=r"has 2 settings: name one of them, as in sweep-1:mbs=1, sweep-1:mbs=2"):
        arms_of_runs(("sweep-1", "alone"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["local-1", "local-1"], "is given twice"),
        (["local-1,", "local-2"], "has a comma without a run"),
        (["local-1", "local-3"], "there is no run 'local-3'"),
        (["local-1", "local-2", "--metric", "step_n"], "did you mean step_ns?"),
        (["local-1", "local-2", "--metric", "tokens_per_step"], "a larger value is neither better nor worse"),
        (["local-1", "local-2", "--fail-above", "5"], "not '5': did you mean 5%?"),
        (["local-1", "local-2", "--fail-above", "0.05"], "not '0.05': did you mean 5%?"),
        (["local-1", "local-2", "--fail-above", "0%"], "not '0%': did you mean 0.1%?"),
        (["local-1", "local-2", "--fail-above", "101%"], "not '101%': did you mean 100%?"),
        (["local-1", "local-2", "--fail-above", "many"], "not 'many': did you mean 5%?"),
        (["local-1", "local-2", "--runs", "8"], "--runs is for launches in quotes"),
        (["-e", "1", "-e", "1"], "put each launch into quotes"),
        (["-e 1", "local-1"], "one of A and B is runs, the other a launch"),
        (["-e 1 --nods 2", "-e 1"], "A: unknown flag --nods: did you mean --nodes?"),
        (["-e 1", "-e 1 --wait"], "B: --wait does not go with a launch inside of a check: drop it"),
        (["-e 1 -g 1", "-e 1 -g 2"], "A has ranks 1 and B 2: make them the same"),
        (["-e 1", "-e 1 --no-profile"], "A has profiler torch and B none"),
        (["-e 0", "-e 0"], "only trainings have steps"),
        (["-e 1", "-e 1", "--resume", "check-x"], "--resume check-x: there is no run of such a check"),
        (["-e 1", "-e 1", "--runs", "1"], "--runs"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    made = stand_in_for_training(monkeypatch, lambda _: 100)
    some_runs(runs, 100, 101)
    assert main(["check", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and not said.out and not made


# ---- Runs that it makes


def test_with_a_stand_in_for_training_both_launches_run_in_turn_and_are_judged_in_blocks(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second block is on a machine that is half as slow again."""
    made = stand_in_for_training(
        monkeypatch,
        lambda part: (100 + NOISE[part.repeat]) * (1 + part.repeat // 2 / 2) * (1.12 if part.point == "b" else 1),
    )
    code, found = checked(capsys, A, A)
    assert "".join(part.point for part in made) == "abbabaab"
    assert len({part.series for part in made}) == 1 and found["in_blocks"]
    assert (code, found["verdict"]) == (1, "worse")
    assert found["low"] > 1.11 and found["high"] < 1.13
    assert {tuple(run.record.command) for run in all_runs()} == {("slurm.sh", *A.split())}
    assert all(run.summary.is_file() for run in all_runs())


def test_what_was_asked_differently_is_shown(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_for_training(monkeypatch, lambda part: 100 + NOISE[part.repeat])
    assert main(["check", A, B]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Settings that differ\n +A +B\n +micro_batch_size +– +1\n", said), said


def test_a_check_that_was_killed_goes_on_with_the_runs_it_has(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part: 100 + NOISE[part.repeat], killed_after=3)
    with pytest.raises(Killed):
        main(["check", A, A])
    series = made[0].series
    assert capsys.readouterr().err.startswith(f"{series}: 8 runs, alternating A B B A B A A B\n")
    again = stand_in_for_training(monkeypatch, lambda part: 100 + NOISE[part.repeat])
    assert main(["check", A, A, "--resume", series]) == 0
    assert "".join(part.point for part in again) == "abaab", "three were there"
    more = stand_in_for_training(monkeypatch, lambda part: 100 + NOISE[part.repeat])
    assert main(["check", A, A, "--resume", series, "--runs", "6"]) == 0
    assert [(part.point, part.repeat) for part in more] == [("a", 4), ("b", 4), ("b", 5), ("a", 5)]
    capsys.readouterr()
    assert main(["check", A, B, "--resume", series]) == 2
    assert "was made with other settings (" in (said := capsys.readouterr().err) and "give A and B as before" in said


def test_the_command_that_would_tell_goes_on_with_the_same_runs(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part: 100 + 10 * NOISE[part.repeat + 2 * (part.point == "b")])
    code, found = checked(capsys, A, A, "--fail-above", "4%")
    assert code == 3 and found["needed_runs"] > 4
    assert found["next"] == (
        f"slurm.sh check '{A}' '{A}' --runs {found['needed_runs']} --fail-above 4% --resume {made[0].series}"
    )


def test_a_run_that_fails_is_left_out_and_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_for_training(
        monkeypatch, lambda part: None if (part.point, part.repeat) == ("b", 1) else 100 + NOISE[part.repeat]
    )
    code, found = checked(capsys, A, A)
    assert (code, len(found["b"]["runs"])) == (0, 3)
    assert "local-3 is left out: failed (slurm.sh logs local-3)" in found["notes"]


def test_an_arm_that_only_fails_is_not_tried_for_ever(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part: None if part.point == "b" else 100)
    assert main(["check", A, A, "--runs", "8"]) == 3
    assert "".join(part.point for part in made) == "abb"
    said, (out, err) = page([]), capsys.readouterr()
    assert "B failed 2 times, and was not started again: slurm.sh logs local-3" in err
    assert "its runs are kept; continue with: slurm.sh check" in err
    assert out == "" and re.search("3 +cannot tell, not comparable, or its runs failed", said)


def test_fewer_than_two_runs_of_an_arm_end_with_3_and_no_verdict(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_for_training(
        monkeypatch, lambda part: None if (part.point, part.repeat) == ("b", 1) else 100 + NOISE[part.repeat]
    )
    assert main(["check", A, A, "--runs", "2", "--json"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and "B: fewer than two runs completed; continue with: slurm.sh check" in err


def test_with_a_stand_in_for_sbatch_all_runs_share_an_allocation_else_a_block_does_else_each_has_its_own(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def alone() -> Run:
        asked.append("alone")
        return Run(runs)

    def refuse_above(most: int) -> None:
        def start(starts: Sequence[Start], way: str, _at_once: int) -> list[Run]:
            asked.append("".join(start.part.point for start in starts if start.part))
            if len(starts) > most:
                raise WorkError("sbatch: time limit exceeds the partition's")
            return [Run(runs)] * len(starts)

        asked.clear()
        monkeypatch.setattr("harness.study.series.runner.start_together", start)

    monkeypatch.setattr("harness.study.series.runner.start_run", lambda *_: alone())
    launch = ArmLaunch(["-e", "1"], DDP(nodes=2), load_site("leonardo"))
    tasks = tasks_of({"a": launch, "b": launch}, 3)
    for most, expected in ((6, ["abbaba"]), (4, ["abbaba", "abba"]), (1, ["abbaba", "abba", "alone"])):
        submitter = submitter_of(tasks)
        refuse_above(most)
        assert submitter.together(tasks) == 6 and submitter.room(1) == 0
        submitter.start("s", tasks)
        assert asked == expected


def test_a_check_says_what_its_runs_cost_at_most_and_those_that_would_tell(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_for_training(monkeypatch, lambda part: 100 + 20 * NOISE[part.repeat + 2 * (part.point == "b")])
    assert main(["check", A, A]) == 3
    said = capsys.readouterr()
    assert "to make: 8 runs, at most " in said.err
    after = " ".join(said.out.partition("runs of each would tell:\n")[2].split())
    needed = int(re.findall(r"--runs (\d+)", after)[0])
    assert f"to make: {2 * (needed - 4)} runs, at most " in after
