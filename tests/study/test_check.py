"""`slurm.sh check`: which runs, in which order, and what it says of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.errors import RequestError, WorkError
from harness.experiment.exercises import DDP
from harness.launch.submit import Start
from harness.run import Run, all_runs
from harness.run.record import SeriesPart
from harness.site.site import load_site
from harness.study.check.series import ArmLaunch, arms_of_runs, block_of, slots, submitter_of, tasks_of
from tests.study.check_shared import Killed, stand_in_for_training, write_metrics
from tests.study.kit import Say, completed

A, B = "-e 1 -g 1 -- --no-profile", "-e 1 -g 1 -- --no-profile --micro-batch-size 1"
NOISE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, 0.0, -0.1)  # ms


def some_runs(root: Path, *times_ms: float, first: int = 1, **start: object) -> str:
    """Completed runs with such steps, as an arm's word."""
    for i, ms in enumerate(times_ms, first):
        write_metrics(completed(root, f"local-{i}", DDP()).path, ms, **start)
    return ",".join(f"local-{i}" for i in range(first, first + len(times_ms)))


# ---- The order


def test_the_order_is_abba_and_more_runs_keep_the_first_ones() -> None:
    assert "".join(slot.key for slot in slots(4)) == "abbabaab"
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(map(slots, range(1, 9))))
    assert len(set(slots(7))) == 14
    assert [block_of(slot.repeat) for slot in slots(4)] == [0] * 4 + [1] * 4


# ---- Runs that are there


@pytest.mark.parametrize(
    ("b", "code", "said"),
    [
        ((100.2, 100.0, 99.9, 100.1), 0, r"^same: .*"),
        ((112, 111.5, 112, 111.8), 1, r"\n  step time +100 ms +112 ms +\+11\.8 % ± \d\.\d % +worse\n"),
        ((99, 104), 3, r"^cannot tell: the interval contains both no change and a change of 5 %\n"),
        ((99, 104), 3, r"\nabout \d+ runs of each would tell:\n  slurm.sh check '-e 1' '-e 1' --runs \d+\n"),
        ((200,), 1, r"step time +100 ms +200 ms +\+99\.9 % ± \d\.\d % +worse\n"),
    ],
)
def test_the_exit_status_is_the_verdict_and_the_text_begins_with_it(
    runs: Path, say: Say, b: tuple[float, ...], code: int, said: str
) -> None:
    words = ["check", some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, *b, first=5)]
    shown = say(*words)
    assert shown.code == code and re.search(said, shown.out), shown.out
    assert [run["value"] for run in say(*words, "--json").json["a"]["runs"]] == [100e6, 100.3e6, 99.8e6, 100.1e6]
    single = say("check", "local-1", "local-5")
    assert (
        single.out.startswith("cannot tell: one run of each does not show how much runs vary") and "±" not in single.out
    )


@pytest.mark.parametrize(
    ("start", "differs"),
    [
        ({"device_name": "another CPU"}, [("devices", "1 × another CPU")]),
        ({"versions": {"torch": "2.14.0"}}, [("torch", "2.14.0")]),
        ({"model": "other"}, [("model", "other")]),
        ({"host_cpu": "x"}, []),
    ],
)
def test_across_hardware_and_software_nothing_is_judged_and_what_some_runs_did_not_record_is_said(
    runs: Path, say: Say, start: dict[str, object], differs: list[tuple[str, str]]
) -> None:
    a = some_runs(runs, 100, 100.3, 99.8)
    words = ["check", a, some_runs(runs, 150, 150.3, 149.8, first=4, **start)]
    found = say(*words, "--json")
    assert [(row["name"], row["b"]) for row in found.json["key_differs"]] == differs
    assert found.json["ratio"] == pytest.approx(1.5, abs=0.01)
    assert (found.code, found.json["verdict"]) == ((3, "not comparable") if differs else (1, "worse"))
    expected = "Not comparable: these differ" if differs else "some runs did not record host processor"
    assert expected in say(*words).out


def metrics_changed(runs: Sequence[Run], pattern: str, new: str, count: int = 0) -> None:
    for run in runs:
        file = run.path / "metrics" / "rank0.jsonl"
        file.write_text(re.sub(pattern, new, file.read_text(), count=count))


def test_a_change_that_hits_few_steps_is_not_hidden_by_the_median(runs: Path, say: Say) -> None:
    arms = some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, 100.1, 100.2, 99.9, 100, first=5)
    metrics_changed(all_runs()[4:], r'"step_ns": \d+', '"step_ns": 300000000', count=1)
    found = say("check", *arms)
    assert found.code == 0 and "B's mean step is worse (" in found.words and "--metric mean_step_ns" in found.words
    assert say("check", *arms, "--metric", "mean_step_ns").code == 1


def test_steps_with_other_numbers_of_tokens_are_judged_per_token(runs: Path, say: Say) -> None:
    arms = some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, 200.2, 200.1, 199.7, 200, first=5)
    metrics_changed(all_runs()[4:], '"tokens": 16', '"tokens": 32')
    found = say("check", *arms, "--json")
    assert (found.code, found.json["metric"]) == (0, "step_ns_per_token")
    assert "per token, since a step is not the same work: 16 and 32 tokens" in found.json["notes"]
    assert say("check", *arms, "--metric", "tokens_per_s").code == 0


def test_runs_that_did_not_complete_are_left_out_and_named(runs: Path, say: Say) -> None:
    words = ["check", some_runs(runs, 100, 100.3, 99.8), some_runs(runs, 100, 100.3, 99.8, first=4), "--json"]
    failed = all_runs()[0]
    own = failed.status()
    assert own is not None
    failed.write_status(own.model_copy(update={"state": "failed"}))
    found = say(*words).json
    assert [run["run"] for run in found["a"]["runs"]] == ["local-2", "local-3"]
    assert "local-1 is left out: it is not complete (failed)" in found["notes"]


def test_a_series_names_its_runs_and_one_with_several_settings_needs_the_setting(runs: Path) -> None:
    for number, place in enumerate(("sweep-1:mbs=1", "sweep-1:mbs=1", "sweep-1:mbs=2", "sweep-1:mbs=2", "alone:x")):
        run = completed(runs, f"local-{number}", DDP())
        part = SeriesPart(series=place.partition(":")[0], point=place.partition(":")[2], repeat=number)
        run.write_record(run.record.model_copy(update={"part": part}))
        write_metrics(run.path, 100 + number / 10)
    arms = arms_of_runs(("sweep-1:mbs=1", "alone"))
    assert [[run.name for run in arm.runs] for arm in arms] == [["local-0", "local-1"], ["local-4"]]
    with pytest.raises(RequestError, match=r"has 2 settings: name one of them, as in sweep-1:mbs=1, sweep-1:mbs=2"):
        arms_of_runs(("sweep-1", "alone"))


# ---- Runs that it makes


def test_with_a_stand_in_for_training_both_launches_run_in_turn_and_are_judged_in_blocks(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """The second block is on a machine that is half as slow again."""
    made = stand_in_for_training(
        monkeypatch,
        lambda part, _: (100 + NOISE[part.repeat]) * (1 + part.repeat // 2 / 2) * (1.12 if part.point == "b" else 1),
    )
    found = say("check", A, A, "--json")
    assert "".join(part.point for part in made) == "abbabaab" and len({part.series for part in made}) == 1
    assert (found.code, found.json["verdict"], found.json["in_blocks"]) == (1, "worse", True)
    assert 1.11 < found.json["low"] < found.json["high"] < 1.13
    assert {tuple(run.record.command) for run in all_runs()} == {("slurm.sh", *A.split())}
    assert all(run.summary.is_file() for run in all_runs())


def test_what_was_asked_differently_is_shown(runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    stand_in_for_training(monkeypatch, lambda part, _: 100 + NOISE[part.repeat])
    said = say("check", A, B)
    assert said.code == 0 and re.search(r"Settings that differ\n +A +B\n +micro_batch_size +– +1\n", said.out), said.out


def test_a_check_that_was_killed_goes_on_with_the_runs_it_has(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part, _: 100 + NOISE[part.repeat], killed_after=3)
    with pytest.raises(Killed):
        main(["check", A, A])
    series = made[0].series
    for words, places in (
        ([A, A, "--resume", series], "a1 b2 a2 a3 b3"),
        ([A, A, "--resume", series, "--runs", "6"], "a4 b4 b5 a5"),
    ):
        more = stand_in_for_training(monkeypatch, lambda part, _: 100 + NOISE[part.repeat])
        said = say("check", *words)
        assert said.code == 0 and said.err.startswith(f"{series}: ")
        assert " ".join(f"{part.point}{part.repeat}" for part in more) == places
    said = say("check", A, B, "--resume", series)
    assert said.code == 2 and "was made with other settings (" in said.err and "give A and B as before" in said.err


def test_the_command_that_would_tell_goes_on_with_the_same_runs_and_says_what_they_cost_at_most(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part, _: 100 + 20 * NOISE[part.repeat + 2 * (part.point == "b")])
    said = say("check", A, A, "--fail-above", "4%")
    assert said.code == 3 and "to make: 8 runs, at most " in said.err
    after = " ".join(said.out.partition("runs of each would tell:\n")[2].split())
    needed = int(re.findall(r"--runs (\d+)", after)[0])
    again = f"slurm.sh check '{A}' '{A}' --runs {needed} --fail-above 4% --resume {made[0].series}"
    assert needed > 4 and after.startswith(f"{again} to make: {2 * (needed - 4)} runs, at most ")


FAILING = [
    (("b1",), [], 0, "local-3 is left out: failed (slurm.sh logs local-3)"),
    (("b1",), ["--runs", "2"], 3, "B: fewer than two runs completed; continue with: slurm.sh check"),
    (("b0", "b1"), ["--runs", "8"], 3, "B failed 2 times, and was not started again: slurm.sh logs local-3"),
    (("b0", "b1"), [], 3, "its runs are kept; continue with: slurm.sh check"),
]


@pytest.mark.parametrize("case", FAILING)
def test_a_run_that_fails_is_named_and_an_arm_that_only_fails_is_not_tried_for_ever(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say, case: tuple[tuple[str, ...], list[str], int, str]
) -> None:
    fails, words, code, sentence = case
    made = stand_in_for_training(
        monkeypatch, lambda part, _: None if f"{part.point}{part.repeat}" in fails else 100 + NOISE[part.repeat]
    )
    said = say("check", A, A, *words)
    assert said.code == code and sentence in said.words
    if code:
        assert said.out == "" and len(made) <= 4


def test_with_a_stand_in_for_sbatch_all_runs_share_an_allocation_else_a_block_does_else_each_has_its_own(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse_above(most: int) -> None:
        def start(starts: Sequence[Start], way: str, _at_once: int) -> list[Run]:
            asked.append("".join(start.part.point for start in starts if start.part))
            if len(starts) > most:
                raise WorkError("sbatch: time limit exceeds the partition's")
            return [Run(runs)] * len(starts)

        asked.clear()
        monkeypatch.setattr("harness.study.series.runner.start_together", start)

    def alone(*_: object) -> Run:
        asked.append("alone")
        return Run(runs)

    monkeypatch.setattr("harness.study.series.runner.start_run", alone)
    launch = ArmLaunch(["-e", "1"], DDP(nodes=2), load_site("leonardo"))
    tasks = tasks_of({"a": launch, "b": launch}, 3)
    for most, expected in ((6, ["abbaba"]), (4, ["abbaba", "abba"]), (1, ["abbaba", "abba", "alone"])):
        submitter = submitter_of(tasks)
        refuse_above(most)
        assert submitter.together(tasks) == 6 and submitter.room(1) == 0
        submitter.start("s", tasks)
        assert asked == expected
