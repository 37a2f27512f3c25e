"""A sweep's file: which runs it means, every error at once; the table of what its runs measured, also over devices."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.job.pop import Times, from_times
from harness.analysis.summary import Efficiency, RankTraining, Summary
from harness.common.errors import RequestError
from harness.compare.points import RepeatedMean, Size, what_limits
from harness.experiment.model import find_model
from harness.run import all_runs
from harness.run.record import Status
from harness.site.detection import choose_site
from harness.site.site import load_site
from harness.study.series.points import TaskStatus
from harness.study.series.runner import SeriesOutcome, to_make
from harness.study.sweeps.axes import Sweep, read_sweep, shipped_sweep, sweep_names
from harness.study.sweeps.expand import expand, threads_of
from harness.study.sweeps.stored import all_series, stored_request
from harness.theory.communication import ddp_buckets
from tests.study.kit import Say
from tests.study.series_shared import a_run, quick_runs, site, site_file

BASE, MEGATRON = {"exercise": 1, "gpus_per_node": 2}, {"exercise": 3, "gpus_per_node": 4}


def a_sweep(**fields: Any) -> Sweep:
    return Sweep(**{"name": "s", "base": BASE, **fields})


def wrong(**fields: Any) -> str:
    with pytest.raises(RequestError) as refused:
        expand(a_sweep(**fields), site())
    return str(refused.value)


# ---- Expansion


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"matrix": {"micro_batch_size": [1, 2], "mixed_precision": [False, True]}}, [
            "micro_batch_size=1 mixed_precision=false", "micro_batch_size=1 mixed_precision=true",
            "micro_batch_size=2 mixed_precision=false", "micro_batch_size=2 mixed_precision=true",
        ]),
        ({"matrix": {"seed": [1, 2]}, "zip": {"micro_batch_size": [1, 4], "gradient_accumulation_steps": [4, 1]}}, [
            "seed=1 micro_batch_size=1 gradient_accumulation_steps=4",
            "seed=1 micro_batch_size=4 gradient_accumulation_steps=1",
            "seed=2 micro_batch_size=1 gradient_accumulation_steps=4",
            "seed=2 micro_batch_size=4 gradient_accumulation_steps=1",
        ]),
        ({
            "matrix": {"micro_batch_size": [1, 2, 4], "seed": [1, 2]},
            "exclude": [{"micro_batch_size": "4"}, {"micro_batch_size": 1, "seed": 2}],
        }, ["micro_batch_size=1 seed=1", "micro_batch_size=2 seed=1", "micro_batch_size=2 seed=2"]),
        ({"matrix": {"seed": [1]}, "on_cpu": {"seed": [2, 3]}}, ["seed=2", "seed=3"]),
        (
            {"base": MEGATRON, "matrix": {"tp": [1, 2, 4], "pp": [1, 4]}, "skip_invalid": True},
            ["tp=1 pp=1", "tp=1 pp=4", "tp=2 pp=1", "tp=4 pp=1"],
        ),
    ],
)  # fmt: skip
def test_which_points_a_file_means(fields: dict[str, Any], expected: list[str]) -> None:
    assert list(expand(a_sweep(**fields), site()).settings) == expected


def test_what_is_left_out_says_why() -> None:
    found = expand(a_sweep(matrix={"seed": [1, 2]}, exclude=[{"seed": 2}]), site())
    assert found.left_out == [("seed=2", "excluded")]
    megatron = a_sweep(base=MEGATRON, matrix={"tp": [1, 2], "pp": [4]}, skip_invalid=True)
    (left,) = expand(megatron, site()).left_out
    assert left.key == "tp=2 pp=4" and "does not divide the world size" in left.why


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
    ).splitlines()
    expected = [
        "base: exercise 1 (DDP) has no option micro_batch: did you mean micro_batch_size?",
        "matrix: partition belongs to the site and is the same for all points: move it to base",
        "matrix: exercise 1 (DDP) has no option gradient-accumulation-steps: did you mean gradient_accumulation_steps?",
        "zip: its lists must have the same length, and have not (steps 2, seq_length 1)",
        "exclude: active_step does not vary: did you mean active_steps?",
        "base: -n/--nodes: got '0', takes a whole number ≥ 1 and ≤ 10000; the nearest is 1",
        "matrix: --active-steps: got '0', takes a whole number ≥ 1 and ≤ 10000000; the nearest is 1",
        "--time: got 'soon', takes HH:MM:SS above zero, e.g. 00:30:00",
    ]
    assert said == [f"sweep s: {line}" for line in expected]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"base": {}}, "base.exercise is missing: the exercises are 0 communication tests"),
        ({"matrix": {"seed": [1]}, "zip": {"seed": [1]}}, "seed is in matrix and in zip: drop one"),
        ({"matrix": {"gpus_per_node": [1]}}, "gpus_per_node is in base and varies: drop one"),
        ({"matrix": {"micro_batch_size": [2, "2"]}}, "micro_batch_size 2 is given twice"),
        ({"matrix": {"seed": [1]}, "on_cpu": {"sed": [2]}}, "on_cpu: sed does not vary: did you mean seed?"),
        ({"matrix": {"seed": [1]}, "exclude": [{"seed": 1}]}, "no combination is left"),
        ({"matrix": {"seed": [1, "x"]}, "skip_invalid": True}, "matrix: --seed: got 'x'"),
        ({"base": MEGATRON, "matrix": {"tp": [2], "pp": [4]}}, "--cp 1 = 8 does not divide the world size 4"),
        ({"base": MEGATRON, "matrix": {"tp": [2], "pp": [4]}}, "(at tp=2 pp=4; exclude it, or say skip_invalid: true)"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in wrong(**fields)


def test_a_files_own_fields_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\nbase: {exercise: 1}\nmatix: {seed: [1]}\n", encoding="utf-8")
    with pytest.raises(RequestError) as refused:
        read_sweep(path)
    assert str(refused.value).startswith(f"sweep file {path}: matix: Extra inputs are not permitted")


@pytest.mark.parametrize("place", ["local", "leonardo", "marenostrum5", "aws-p5"])
@pytest.mark.parametrize("name", sweep_names())
def test_the_sweeps_that_come_with_the_harness_are_valid_here_and_on_clusters(name: str, place: str) -> None:
    found = expand(read_sweep(shipped_sweep(name) or Path()), site() if place == "local" else load_site(place))
    assert found.sweep.name == name and found.sweep.title and len(found.settings) >= 3


@pytest.mark.parametrize(("place", "model"), [("leonardo", "llama-3.2-1b"), ("local", "tiny-llama")])
def test_each_size_of_the_buckets_sends_another_number_of_messages_and_the_last_one_a_single_one(
    place: str, model: str
) -> None:
    points = expand(read_sweep(shipped_sweep("buckets") or Path()), load_site(place)).settings.values()
    gradients = find_model(model)[0].gradients(lora=64)
    sent = [ddp_buckets(reversed(gradients), each["bucket_cap_mb"] * 2**20) for each in points]
    assert sent == sorted(set(sent), reverse=True) and sent[-1] == 1


def test_on_this_machine_every_point_runs_once_before_any_runs_again() -> None:
    for place, order in ((site(), [0, 0, 1, 1]), (load_site("leonardo"), [0, 1, 0, 1])):
        tasks = expand(a_sweep(matrix={"micro_batch_size": [1, 2]}, repeats=2), place).tasks
        starts = to_make([TaskStatus(task, "to do", None, None) for task in tasks], retry_failed=False)
        assert [task.point.repeat for task in starts] == order


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
    monkeypatch.setenv("HARNESS_SITE", site_file(tmp_path))
    path = tmp_path / "s.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_without_a_terminal_nothing_is_started_without_yes(file: str, say: Say) -> None:
    said = say("sweep", file)
    assert said.code == 2 and "add --yes to start 4 runs" in said.err
    assert "to make: 4 runs, at most 2 h (the time limit: 00:30:00 each)" in said.err
    assert (all_runs(), all_series()) == ([], [])


@pytest.mark.parametrize("case", [("n\n", 0, "nothing was started"), ("", 130, "interrupted")])
def test_a_person_who_does_not_say_yes_starts_nothing(
    file: str, case: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    typed, code, sentence = case
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    said = say("sweep", file)
    assert said.code == code and "start 4 runs? [y/N]" in said.err and sentence in said.err
    assert all_series() == []


@pytest.mark.parametrize("flag", ["--dry-run", "--yes"])
def test_what_the_shell_brings_to_the_runs_is_told_once_before_they_start(
    file: str, flag: str, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.setenv("NCCL_P2P_LEVEL", "LOC")
    monkeypatch.setattr("harness.cli.study.series.carry_out", lambda *_, **__: SeriesOutcome([]))
    assert say("sweep", file, flag).err.count("\n  from your shell: NCCL_P2P_LEVEL=LOC") == 1


def test_a_dry_run_prints_a_command_per_point_and_writes_nothing(file: str, say: Say) -> None:
    said = say("sweep", file, "--dry-run", "--time", "00:06:00", "--", "--steps", "60")
    assert said.code == 0 and "at most 24 min (the time limit: 00:06:00 each)" in said.err
    assert said.out.splitlines()[0] == (
        "micro_batch_size=1  bash slurm.sh -e 1 -g 2 --time 00:06:00 -- --steps 60 --micro-batch-size 1 --no-profile"
        "   # 2 runs"
    )
    assert all_series() == []


def test_the_result_is_a_table_with_intervals(file: str, tmp_path: Path, say: Say) -> None:
    """The micro-batch of 2 is twice as fast, ± 10 %."""
    for number, task in enumerate(expand(read_sweep(file), choose_site(None).site).tasks):
        speed = 1000 * (1 + ("=2" in task.point.key)) * (0.9, 1.1)[task.point.repeat]
        run = a_run(tmp_path / "runs", task, "completed", number=number)
        summary = Summary(world_size=2, efficiency=Efficiency(tokens_per_s=speed))
        run.summary.write_text(summary.model_dump_json(), encoding="utf-8")
    said = say("sweep", file)
    assert said.code == 0 and said.err.endswith("4 done\n")
    # s = 141.4, t(1) = 12.706: 12.706 × 141.4 / √2
    row = next(line.split() for line in said.out.splitlines() if line.startswith("  1 "))
    assert row == ["1", "2", "1.00", "ktokens/s", "±", "1.27", "ktokens/s"]
    points = say("sweep", file, "--json").json["points"]
    assert [round(point["values"]["tokens_per_s"]["mean"]) for point in points] == [1000, 2000]


def test_a_point_whose_runs_fall_into_two_groups_has_a_line_below_the_table(
    file: str, tmp_path: Path, say: Say
) -> None:
    """Of the second point every other run has half the speed."""
    more = ("--repeats", "8")
    asked = read_sweep(file).model_copy(update={"repeats": 8})
    for number, task in enumerate(expand(asked, choose_site(None).site).tasks):
        slow = "=2" in task.point.key and task.point.repeat % 2 == 1
        run = a_run(tmp_path / "runs", task, "completed", number=number)
        speed = 1000 * (1 + number / 1000) / (1 + slow)
        summary = Summary(
            world_size=2, efficiency=Efficiency(tokens_per_s=speed), hosts=["n7" if slow else "n1"],
        )  # fmt: skip
        run.summary.write_text(summary.model_dump_json(), encoding="utf-8")
    said = say("sweep", file, *more)
    assert said.code == 0
    assert " ".join(said.out.split()).endswith(
        "micro_batch_size=2 falls into two groups: 4 of 8 runs have 506 tokens/s, 4 have 1.01 ktokens/s; "
        "all slow ones on n7"
    )


def test_it_runs_fails_and_goes_on_by_its_name(file: str, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    quick_runs(monkeypatch, 0.02)
    said = say("sweep", file, "--yes")
    assert said.code == 0, "no run measured anything, and that is said"
    assert "[3 done · 1 running] started: micro_batch_size=2 (repeat 2)" in said.err
    assert said.err.count("it left no traces or numbers to measure") == 4
    request, failed = stored_request("s"), all_runs()[1]
    assert request is not None and request.sweep.matrix == {"micro_batch_size": [1, 2]}
    failed.write_status(Status(state="failed", started_ns=1, ended_ns=2))
    said = say("sweep", "s")
    assert said.code == 1 and f"failed: micro_batch_size=2 (failed): bash slurm.sh logs {failed.job_id}" in said.err
    assert "repeat the failed runs: bash slurm.sh sweep s --retry-failed" in said.err
    assert say("sweep", "s", "--retry-failed", "--yes").code == 0
    assert len(all_runs()) == 5, "the failed run is kept"
    points = say("sweep", "s", "--dry-run", "--json").json["points"]
    assert [(point["stands"], point["kept"]) for point in points].count(("done", [failed.job_id])) == 1
    assert "started here" in say("sweep").out


def test_more_repeats_are_added_and_other_settings_are_another_series(
    file: str, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    quick_runs(monkeypatch, 0.02)
    assert [say("sweep", file, "--yes", "--repeats", repeats).code for repeats in "12"] == [0, 0]
    assert len(all_runs()) == 4
    longer = ("--", "--steps", "60")
    said = say("sweep", file, "--yes", *longer)
    assert said.code == 2 and "series s began with another base" in said.err
    assert say("sweep", file, "--yes", "--name", "longer", "--repeats", "1", *longer).code == 0
    assert all_series() == ["longer", "s"]


# ---- A sweep over devices


STRONG = {
    "name": "mine",
    "base": {"exercise": 1},
    "zip": {"gpus_per_node": [1, 2, 4], "micro_batch_size": [4, 2, 1]},
    "repeats": 3,
}
OVER_DEVICES = Sweep.model_validate(STRONG)


def mean(value: float) -> RepeatedMean:
    return RepeatedMean(mean=value, n=1)


def a_size(devices: int, efficiency: float, **values: float) -> Size:
    return Size(
        point=f"n={devices}", settings={}, devices=devices, runs=["r"], unit="tokens/s", efficiency=mean(efficiency),
        values={name: mean(value) for name, value in values.items()},
    )  # fmt: skip


WELL = {"load_balance": 0.99, "serialisation": 0.98, "transfer": 0.97, "orchestration": 0.95, "communication": 0.95}


BEGIN = "on 8 devices each does 50 % of what one of 1 does; "
FIRST = a_size(1, 1.0, **WELL)


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (FIRST, {"load_balance": 0.6}, f"{BEGIN}the largest loss is unequal work of the devices: load balance is 0.61"),
        (FIRST, {"transfer": 0.5}, "the time to send the messages: transfer is 0.52 times"),
        (FIRST, {"serialisation": 0.5}, "ranks that wait for each other"),
        (FIRST, {"orchestration": 0.4}, "devices that wait for their host"),
        (FIRST, {"computation_scalability": 0.55}, "more computing time for the same work"),
        (FIRST, {}, f"{BEGIN}no factor of its efficiency lost more than 3 %"),
        (a_size(1, 1.0), {}, f"{BEGIN}the runs' traces do not show"),
        (
            a_size(1, 1.0, communication=1.0),
            {"communication": 0.4},
            "communication is 0.40 times",
        ),  # its parts: unknown
    ],
)
def test_one_sentence_names_the_factor_that_fell_most(first: Size, last: dict[str, float], words: str) -> None:
    assert words in what_limits([first, a_size(8, 0.5, **(WELL | last))])


def test_one_size_says_nothing_and_more_than_the_ideal_is_a_reason_to_look() -> None:
    assert "fewer than two sizes" in what_limits([FIRST])
    said = what_limits([FIRST, a_size(4, 5.4, **WELL)])
    assert ", more than the ideal: look at the smallest size first (bash slurm.sh report r)" in said


OWN = {"exercise": "own", "command": "train.py", "start_in": "/"}


def test_on_this_machines_cpus_a_process_has_the_same_threads_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launch.submit.usable_cores", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pinned = site().model_copy(update={"env": {"OMP_NUM_THREADS": "1"}})
    several = OVER_DEVICES.model_copy(update={"matrix": {"seed": [1, 2]}})  # no single training
    own = Sweep.model_validate({"name": "x", "base": OWN, "zip": {"gpus_per_node": [1, 2, 4]}})
    asked = ((OVER_DEVICES, site()), (own, site()), (several, site()), (OVER_DEVICES, pinned))
    found = [threads_of(expand(sweep, place)) for sweep, place in (*asked, (OVER_DEVICES, load_site("leonardo")))]
    assert found == [{"OMP_NUM_THREADS": "4"}] * 2 + [{}] * 3


def summary(devices: int, speed: float, useful_ns: int) -> Summary:
    each = Times(useful_ns * 5, useful_ns * 5, 5000)
    training = [RankTraining(rank=r, steps_counted=5, tokens=640 // devices) for r in range(devices)]
    pop = from_times([each] * devices, 5)
    return Summary(world_size=devices, efficiency=Efficiency(tokens_per_s=speed), pop=pop, training=training)


def test_a_sweep_over_devices_shows_speed_up_efficiency_and_what_explains_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """Every run is there: two devices are 1.6 times as fast, four twice, ± 1 %."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HARNESS_SITE", site_file(tmp_path))
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(STRONG))
    for number, task in enumerate(expand(OVER_DEVICES, load_site(site_file(tmp_path))).tasks):
        run = a_run(tmp_path / "runs", task, "completed", number=number, series="mine")
        speed = {1: 1000, 2: 1600, 4: 2000}[task.devices] * (0.99, 1.0, 1.01)[task.point.repeat]
        useful = {1: 900, 2: 500, 4: 400}[task.devices]
        run.summary.write_text(summary(task.devices, speed, useful).model_dump_json(), encoding="utf-8")
    told = say("sweep", str(file), "--json").json
    first, _, last = ups = [size["speed_up"] for size in told["points"]]
    assert [round(up["mean"], 6) for up in ups] == [1.0, 1.6, 2.0]
    assert first["low"] is None and last["low"] < 2.0 < last["high"] < 2.1
    assert [round(size["efficiency"]["mean"], 6) for size in told["points"]] == [1.0, 0.8, 0.5]
    # 640 tokens in each step: one device computes 900, four 400 each.
    assert told["points"][2]["values"]["computation_scalability"]["mean"] == pytest.approx(900 / 1600)
    assert "the largest loss is devices that wait for their host" in told["limit"]
    said = say("sweep", str(file)).out
    assert re.search(r"^ +4 .*2\.00 \(1\.9.*50\.0 % \(4.*\n(.*\n)*What explains it", said, re.M), said
