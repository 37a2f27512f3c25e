"""A sweep's file: which runs it means, every error at once; and the table of what its runs measured."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.summary import Efficiency, Summary
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.experiment.exercises import DeepSpeed
from harness.run import Run, all_runs
from harness.site.site import load_site
from harness.study.series.points import TaskStatus
from harness.study.series.runner import SeriesOutcome, to_make
from harness.study.sweeps.axes import Sweep, read_sweep, shipped_sweep, sweep_names
from harness.study.sweeps.expand import SweepPoints, expand
from harness.study.sweeps.stored import all_series, stored_request
from tests.study.series_shared import a_run, quick_runs, site

BASE = {"exercise": 1, "gpus_per_node": 2}


def a_sweep(**fields: Any) -> Sweep:
    return Sweep(**{"name": "s", "base": BASE, **fields})


def points(**fields: Any) -> list[str]:
    return list(expand(a_sweep(**fields), site()).settings)


def wrong(**fields: Any) -> str:
    with pytest.raises(RequestError) as refused:
        expand(a_sweep(**fields), site())
    return str(refused.value)


def slots(found: SweepPoints) -> list[tuple[str, int]]:
    return [(task.point.key, task.point.repeat) for task in found.tasks]


# ---- Expansion


def test_a_matrix_is_every_combination_in_the_files_order() -> None:
    assert points(matrix={"micro_batch_size": [1, 2], "mixed_precision": [False, True]}) == [
        "micro_batch_size=1 mixed_precision=false",
        "micro_batch_size=1 mixed_precision=true",
        "micro_batch_size=2 mixed_precision=false",
        "micro_batch_size=2 mixed_precision=true",
    ]


def test_zipped_lists_go_together_and_cross_the_matrix() -> None:
    assert points(matrix={"seed": [1, 2]}, zip={"micro_batch_size": [1, 4], "gradient_accumulation_steps": [4, 1]}) == [
        "seed=1 micro_batch_size=1 gradient_accumulation_steps=4",
        "seed=1 micro_batch_size=4 gradient_accumulation_steps=1",
        "seed=2 micro_batch_size=1 gradient_accumulation_steps=4",
        "seed=2 micro_batch_size=4 gradient_accumulation_steps=1",
    ]


def test_an_exclusion_leaves_out_what_matches_all_its_fields_and_says_so() -> None:
    found = expand(
        a_sweep(
            matrix={"micro_batch_size": [1, 2, 4], "seed": [1, 2]},
            exclude=[{"micro_batch_size": "4"}, {"micro_batch_size": 1, "seed": 2}],
        ),
        site(),
    )
    assert list(found.settings) == [
        "micro_batch_size=1 seed=1",
        "micro_batch_size=2 seed=1",
        "micro_batch_size=2 seed=2",
    ]
    assert found.left_out[0] == ("micro_batch_size=1 seed=2", "excluded")


def test_what_the_rules_refuse_is_an_error_or_with_skip_invalid_left_out_with_the_rules_sentence() -> None:
    fields: dict[str, Any] = {"base": {"exercise": 3, "gpus_per_node": 4}, "matrix": {"tp": [1, 2, 4], "pp": [1, 4]}}
    said = wrong(**fields)
    assert "tp=2 pp=4" in said
    assert "--tp 2 × --pp 4 × --cp 1 = 8 does not divide the world size 4" in said
    assert "skip_invalid: true" in said
    found = expand(a_sweep(**fields, skip_invalid=True), site())
    assert [left.key for left in found.left_out] == ["tp=2 pp=4", "tp=4 pp=4"]
    assert all("does not divide the world size" in left.why for left in found.left_out)


def test_a_value_that_is_wrong_by_itself_is_an_error_also_with_skip_invalid() -> None:
    assert "matrix: --micro-batch-size: got 'many'" in wrong(
        matrix={"micro_batch_size": [1, "many"]}, skip_invalid=True
    )


def test_where_nothing_is_left_the_reasons_are_told() -> None:
    said = wrong(matrix={"micro_batch_size": [1]}, exclude=[{"micro_batch_size": 1}])
    assert "no combination is left" in said


def test_seeds_are_repeats_with_seeds_of_their_own_and_more_repeats_keep_the_places_of_those_before() -> None:
    few = expand(a_sweep(matrix={"micro_batch_size": [1]}, seeds=2, repeats=1), site())
    more = expand(a_sweep(matrix={"micro_batch_size": [1]}, seeds=2, repeats=2), site())
    assert slots(few) == [("micro_batch_size=1", 0), ("micro_batch_size=1", 1)]
    asked = {task.point.repeat: task.point.experiment.model_dump()["seed"] for task in more.tasks}
    assert asked == {0: 1234, 1: 1235, 2: 1234, 3: 1235}
    listed = expand(a_sweep(seeds=[7, 3]), site())
    assert [task.point.experiment.model_dump()["seed"] for task in listed.tasks] == [7, 3]


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True),
    gas=st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True),
    repeats=st.integers(1, 3),
    left_out=st.integers(1, 64),
)
def test_a_sweep_has_each_combination_as_often_as_it_is_repeated(
    sizes: list[int], gas: list[int], repeats: int, left_out: int
) -> None:
    kept = [size for size in sizes if size != left_out]
    if not kept:
        return
    found = expand(
        a_sweep(
            matrix={"micro_batch_size": sizes, "gradient_accumulation_steps": gas},
            exclude=[{"micro_batch_size": left_out}],
            repeats=repeats,
        ),
        site(),
    )
    wanted = [
        (f"micro_batch_size={size} gradient_accumulation_steps={g}", repeat)
        for size in kept for g in gas for repeat in range(repeats)
    ]  # fmt: skip
    assert slots(found) == wanted
    for task in found.tasks:
        asked = task.prepared.experiment.model_dump()
        assert task.point.key == (
            f"micro_batch_size={asked['micro_batch_size']} "
            f"gradient_accumulation_steps={asked['gradient_accumulation_steps']}"
        )


def test_a_points_command_asks_for_the_same_experiment_alone() -> None:
    found = expand(
        a_sweep(base={**BASE, "time": "00:05:00"}, matrix={"mixed_precision": [True]}), load_site("local"), "local"
    )
    assert found.tasks[0].point.command == [
        "slurm.sh", "-e", "1", "-g", "2", "--site", "local", "--time", "00:05:00", "--", "--mixed-precision",
    ]  # fmt: skip
    assert found.site.time == "00:05:00"


def test_every_error_of_a_file_is_told_at_once_with_the_nearest_names() -> None:
    said = wrong(
        base={"exercise": 1, "micro_batch": 2, "time": "soon", "nodes": 0},
        matrix={"partition": ["a"], "gradient-accumulation-steps": [1], "active_steps": [0]},
        zip={"steps": [30, 40], "seq_length": [64]},
        exclude=[{"active_step": 1}],
        seeds=["x"],
    ).splitlines()
    expected = [
        "base: exercise 1 (DDP) has no option micro_batch: did you mean micro_batch_size?",
        "matrix: partition belongs to the site and is the same for all points: move it to base",
        "matrix: exercise 1 (DDP) has no option gradient-accumulation-steps: did you mean gradient_accumulation_steps?",
        "zip: its lists must have the same length, and have not (steps 2, seq_length 1)",
        "exclude: active_step does not vary: did you mean active_steps?",
        "base: -n/--nodes: got '0', takes a whole number ≥ 1 and ≤ 10000; the nearest is 1",
        "matrix: --active-steps: got '0', takes a whole number ≥ 1 and ≤ 10000000; the nearest is 1",
        "seeds: --seed: got 'x', takes a whole number ≥ 0 and ≤ 2147483647",
        "--time: got 'soon', takes HH:MM:SS above zero, e.g. 00:30:00",
    ]
    assert said == [f"sweep s: {line}" for line in expected]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"base": {}}, "base.exercise is missing: there are 0 communication tests"),
        ({"matrix": {"seed": [1]}, "zip": {"seed": [1]}}, "seed is in matrix and in zip: drop one"),
        ({"matrix": {"gpus_per_node": [1]}}, "gpus_per_node is in base and varies: drop one"),
        ({"matrix": {"seed": [1, 2]}, "seeds": 2}, "seed varies already: drop it there, or drop seeds"),
        ({"matrix": {"micro_batch_size": [2, "2"]}}, "micro_batch_size 2 is given twice"),
        ({"base": {"exercise": 0}, "seeds": 2}, "seeds: exercise 0 (communication tests) has no option seed"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in wrong(**fields)


def test_a_files_own_fields_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nbase: {exercise: 1}\nmatix: {seed: [1]}\nrepeats: 0\n", encoding="utf-8")
    with pytest.raises(RequestError) as refused:
        read_sweep(path)
    assert f"sweep file {path}: unknown field matix: did you mean matrix?" in str(refused.value)
    assert "field repeats is 0: input should be greater than or equal to 1" in str(refused.value)


@pytest.mark.parametrize("place", ["local", "leonardo", "marenostrum5", "aws-p5"])
@pytest.mark.parametrize("name", sweep_names())
def test_the_sweeps_that_come_with_the_harness_are_valid_here_and_on_clusters(name: str, place: str) -> None:
    path = shipped_sweep(name)
    here = site() if place == "local" else load_site(place)
    found = expand(read_sweep(path), here)
    assert found.sweep.name == name
    assert found.sweep.title
    assert len(found.settings) >= 3


def test_there_are_sweeps_for_the_six_questions() -> None:
    assert sweep_names() == ["buckets", "dataloader-workers", "gas", "hpz", "micro-batch", "tp-pp-mbs"]


def test_an_axis_has_other_values_without_gpus() -> None:
    sweep = read_sweep(shipped_sweep("buckets"))
    assert expand(sweep, load_site("leonardo")).settings.keys() == {
        f"bucket_cap_mb={size}" for size in ("1.0", "5.0", "10.0", "25.0", "50.0", "100.0", "250.0")
    }
    here = [each["bucket_cap_mb"] for each in expand(sweep, site()).settings.values()]
    assert here[-1] == 1.0 and max(here) * 2**20 < 1.3e6, "a miniature's gradients are 1.25 MB"
    assert points(matrix={"seed": [1]}, on_cpu={"seed": [2, 3]}) == ["seed=2", "seed=3"]
    said = wrong(matrix={"seed": [1]}, on_cpu={"sed": [2]})
    assert "on_cpu: sed does not vary: did you mean seed?" in said


def test_on_this_machine_every_point_runs_once_before_any_runs_again() -> None:
    fields: dict[str, Any] = {"matrix": {"micro_batch_size": [1, 2]}, "repeats": 2}
    for place, order in ((site(), [0, 0, 1, 1]), (load_site("leonardo"), [0, 1, 0, 1])):
        tasks = expand(a_sweep(**fields), place).tasks
        starts = to_make([TaskStatus(task, "to do", None, None) for task in tasks], retry_failed=False)
        assert [task.point.repeat for task in starts] == order


def test_hpz_counts_the_ranks_of_the_site() -> None:
    found = expand(read_sweep(shipped_sweep("hpz")), load_site("leonardo"))
    asked = [task.point.experiment for task in found.tasks[::3]]
    assert [one.hpz_partition for one in asked if isinstance(one, DeepSpeed)] == [1, 2, 4, 8]


# ---- The command


FILE = """
name: s
base: {exercise: 1, gpus_per_node: 2, profiler: none}
matrix: {micro_batch_size: [1, 2]}
repeats: 2
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    here = tmp_path / "here.yaml"
    here.write_text(json.dumps({"name": "here", "description": "x", "scheduler": "local", "device": "cpu"}))
    monkeypatch.setenv("HARNESS_SITE", str(here))
    path = tmp_path / "s.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def measured(file: str, root: Path) -> None:
    """Every run of the file, completed, with a summary; the micro-batch of 2 is twice as fast, ± 10 %."""
    from harness.site.detection import choose_site

    found = expand(read_sweep(file), choose_site(None).site)
    for number, task in enumerate(found.tasks):
        run = a_run(root, task, "completed", number=number, took_s=36)
        size = 1 if "=1" in task.point.key else 2
        speed = 1000 * size * (0.9, 1.1)[task.point.repeat]
        summary = Summary(world_size=2, efficiency=Efficiency(tokens_per_s=speed))
        run.summary.write_text(summary.model_dump_json(), encoding="utf-8")


def test_without_a_terminal_nothing_is_started_without_yes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", file]) == 2
    said = capsys.readouterr().err
    assert "add --yes to start 4 runs" in said
    assert "to make: 4 runs, at most 2.0 h (the time limit: 00:30:00 each)" in said
    assert all_runs() == []
    assert all_series() == []


@pytest.mark.parametrize("case", [("n\n", 0, "nothing was started"), ("", 130, "interrupted")])
def test_a_person_who_does_not_say_yes_starts_nothing(
    file: str, case: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed, code, sentence = case
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["sweep", file]) == code
    said = capsys.readouterr().err
    assert "start 4 runs? [y/N]" in said
    assert sentence in said
    assert all_series() == []


@pytest.mark.parametrize("flag", ["--dry-run", "--yes"])
def test_what_the_shell_brings_to_the_runs_is_told_once_before_they_start(
    file: str, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_P2P_LEVEL", "LOC")
    monkeypatch.setattr("harness.cli.study.series.carry_out", lambda *_: SeriesOutcome([]))
    main(["sweep", file, flag])
    assert capsys.readouterr().err.count("\n  from your shell: NCCL_P2P_LEVEL=LOC") == 1


def test_a_dry_run_prints_a_command_per_run_and_writes_nothing(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", file, "--dry-run", "--time", "00:06:00", "--", "--steps", "60"]) == 0
    said = capsys.readouterr()
    assert "at most 24.0 min (the time limit: 00:06:00 each)" in said.err
    assert said.out.splitlines()[0] == (
        "micro_batch_size=1: bash slurm.sh -e 1 -g 2 --time 00:06:00 -- --steps 60 --micro-batch-size 1 --no-profile"
    )
    assert all_series() == []


def test_the_result_is_a_table_with_intervals(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(file, tmp_path / "runs")
    assert main(["sweep", file]) == 0
    said = capsys.readouterr()
    assert "spent so far: 2.4 min\n" in said.err
    assert said.err.endswith("4 done\n")
    # s = 141.4, t(1) = 12.706: 12.706 × 141.4 / √2
    row = next(line.split() for line in said.out.splitlines() if line.startswith("  1 "))
    assert row == ["1", "2", "1.00", "ktokens/s", "±", "1.27", "ktokens/s"]
    assert main(["sweep", file, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [round(point["values"]["tokens_per_s"]["mean"]) for point in points] == [1000, 2000]


def test_it_runs_fails_and_goes_on_by_its_name(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_runs(monkeypatch, 0.02)
    assert main(["sweep", file, "--yes"]) == 0, "no run measured anything, and that is said"
    said = capsys.readouterr().err
    assert "[3 done · 1 running] started: micro_batch_size=2 (repeat 2)" in said
    assert said.count("it left no traces or numbers to measure") == 4
    request = stored_request("s")
    assert request.sweep.matrix == {"micro_batch_size": [1, 2]}
    failed: Run = all_runs()[1]
    failed.write_status(failed.status().model_copy(update={"state": "failed"}))
    assert main(["sweep", "s"]) == 1
    said = capsys.readouterr().err
    assert f"failed: micro_batch_size=2 (failed): slurm.sh logs {failed.job_id}" in said
    assert "repeat the failed runs: slurm.sh sweep s --retry-failed" in said
    assert main(["sweep", "s", "--retry-failed", "--yes"]) == 0
    assert len(all_runs()) == 5, "the failed run is kept"
    assert main(["sweep", "s", "--status"]) == 0
    assert f"{failed.job_id} failed" in capsys.readouterr().out
    assert main(["sweep"]) == 0
    assert "started here" in capsys.readouterr().out


def test_more_repeats_are_added_and_other_settings_are_another_series(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_runs(monkeypatch, 0.02)
    assert main(["sweep", file, "--yes", "--repeats", "1"]) == 0
    assert main(["sweep", file, "--yes", "--repeats", "2"]) == 0
    assert len(all_runs()) == 4
    assert main(["sweep", file, "--yes", "--", "--steps", "60"]) == 2
    assert "series s began with another base" in capsys.readouterr().err
    assert main(["sweep", file, "--yes", "--name", "longer", "--repeats", "1", "--", "--steps", "60"]) == 0
    assert all_series() == ["longer", "s"]


def test_the_cap_ends_a_sweep_with_its_numbers_and_exit_1(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_runs(monkeypatch, 0.02)
    assert main(["sweep", file, "--yes", "--max-gpu-hours", "0.5"]) == 1
    said = capsys.readouterr().err
    assert "cap: 0.5 process hours; all runs together take at most 4.00, so it stops before a run that could" in said
    assert "stopped before the cap: 0 device hours are spent, the next run (micro_batch_size=1) may take" in said
    assert all_runs() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gass"], "there is no sweep 'gass': did you mean gas? (slurm.sh sweep lists all"),
        (["/no/such.yaml"], "sweep file /no/such.yaml: cannot be read"),
        (["gas", "--max-gpu-hours", "-1"], "--max-gpu-hours: got '-1', takes a number above 0"),
        (["gas", "--max-parallel", "2.5"], "--max-parallel: got '2.5', takes a whole number above 0"),
        (["gas", "--repeats", "0"], "--repeats: got '0', takes a whole number from 1 to 1000"),
        (["gas", "--name", "../x"], "--name: got '../x'"),
        (["gas", "--follow"], "unknown flag --follow"),
        (["gas", "--", "--tp", "2"], "--tp belongs to exercise 3"),
        (["gas", "--gradient-accumulation-steps", "2"], "gradient_accumulation_steps varies in this sweep"),
        (["gas", "-e", "2"], "-e: this sweep is of exercise 1: drop it"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    file: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert all_series() == []


@pytest.mark.train
@pytest.mark.long
def test_a_real_sweep_of_two_points_shows_what_its_trainings_measured(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_text(
        "name: real\nshow: [tokens_per_s, step_ns]\n"
        "base: {exercise: 1, gpus_per_node: 1, skip_steps: 1, wait_steps: 1, warmup_steps: 1, active_steps: 3}\n"
        "matrix: {micro_batch_size: [1, 4]}\n",
        encoding="utf-8",
    )
    assert main(["sweep", file, "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [point["settings"] for point in told["points"]] == [{"micro_batch_size": "1"}, {"micro_batch_size": "4"}]
    assert all(point["values"]["tokens_per_s"]["mean"] > 0 for point in told["points"])
    assert all(run.summary.is_file() for run in all_runs())
