"""`slurm.sh sweep scaling`: which field keeps the work, speed-up and efficiency with intervals, and their limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.job.pop import Times, from_times
from harness.analysis.summary import Efficiency, RankTraining, Summary
from harness.compare.points import RepeatedMean, Size, what_limits
from harness.experiment.exercises import EXERCISES
from harness.site.site import load_site
from harness.study.scaling import Axis, Mode, Study, study_sweep, threads_of
from harness.study.sweeps.axes import Sweep
from harness.study.sweeps.expand import expand
from tests.study.kit import Say
from tests.study.series_shared import a_run, site, site_file


def sweep_of(exercise: int, mode: Mode, sizes: list[int], axis: Axis = "gpus_per_node", **given: Any) -> Sweep:
    return study_sweep(Study(EXERCISES[exercise], given, axis, sizes, mode, 3), site())


def samples_of_a_step(sweep: Sweep) -> list[int]:
    """Samples of all ranks between two updates, at each size."""
    asked = [task.prepared.job.experiment.model_dump() for task in expand(sweep, site()).tasks[::3]]
    ranks = [one["nodes"] * one["gpus_per_node"] for one in asked]
    return [
        one.get("global_batch_size") or one["micro_batch_size"] * one["gradient_accumulation_steps"] * n
        for one, n in zip(asked, ranks, strict=True)
    ]


NODES = {"gpus_per_node": 2, "global_batch_size": 16}


@pytest.mark.parametrize(
    ("asked", "given", "zipped", "samples"),
    [
        ((1, "weak", [1, 2, 4]), {"micro_batch_size": 3}, {}, [3, 6, 12]),
        ((1, "strong", [1, 2, 4]), {"micro_batch_size": 8}, {"micro_batch_size": [8, 4, 2]}, [8, 8, 8]),
        (
            (2, "strong", [1, 2, 4, 8]), {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
            {"micro_batch_size": [2, 2, 2, 1], "gradient_accumulation_steps": [4, 2, 1, 1]}, [8, 8, 8, 8],
        ),
        ((3, "strong", [1, 2, 4], "nodes"), NODES, {}, [16, 16, 16]),
        ((3, "weak", [1, 2, 4], "nodes"), {**NODES, "tp": 1}, {"global_batch_size": [16, 32, 64]}, [16, 32, 64]),
    ],
)  # fmt: skip
def test_which_fields_keep_the_work(
    asked: tuple[Any, ...], given: dict[str, Any], zipped: dict[str, list[int]], samples: list[int]
) -> None:
    sweep = sweep_of(*asked, **given)
    _, *varying = sweep.zip
    assert ({name: sweep.zip[name] for name in varying}, samples_of_a_step(sweep)) == (zipped, samples)


def test_megatrons_tensor_parallel_size_stays_that_of_the_smallest_size() -> None:
    strong = sweep_of(3, "strong", [1, 2, 4], "nodes", gpus_per_node=2, global_batch_size=16)
    assert (strong.base["global_batch_size"], strong.base["tp"]) == (16, 2)


def test_a_cluster_is_scaled_over_its_nodes() -> None:
    sweep = study_sweep(Study(EXERCISES[2], {}, "nodes", [1, 2, 4, 8], "weak", 1), load_site("leonardo"))
    found = expand(sweep, load_site("leonardo"), "leonardo")
    assert [task.devices for task in found.tasks] == [4, 8, 16, 32]
    assert found.tasks[3].point.command == ["slurm.sh", "-e", "2", "-n", "8", "--site", "leonardo"]


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
    assert ", more than the ideal: look at the smallest size first (slurm.sh report r)" in said


def test_on_this_machines_cpus_a_process_has_the_same_threads_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launch.submit.usable_cores", lambda: 16)
    sweep = sweep_of(1, "weak", [1, 2, 4])
    assert threads_of(expand(sweep, site())) == {"OMP_NUM_THREADS": "4"}
    assert threads_of(expand(sweep, load_site("leonardo"))) == {}
    pinned = site().model_copy(update={"env": {"OMP_NUM_THREADS": "1"}})
    assert threads_of(expand(sweep, pinned)) == {}
    several = sweep.model_copy(update={"matrix": {"seed": [1, 2]}})
    assert threads_of(expand(several, site())) == {}, "it is no single training"
    base = {"exercise": "own", "command": "train.py", "start_in": "/"}
    own = Sweep.model_validate({"name": "x", "base": base, "zip": {"gpus_per_node": [1, 2, 4]}})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_of(expand(own, site())) == {"OMP_NUM_THREADS": "4"}


def summary(devices: int, speed: float, useful_ns: int) -> Summary:
    each = Times(useful_ns * 5, useful_ns * 5, 5000)
    training = [RankTraining(rank=r, steps_counted=5, tokens=640 // devices) for r in range(devices)]
    pop = from_times([each] * devices, 5)
    return Summary(world_size=devices, efficiency=Efficiency(tokens_per_s=speed), pop=pop, training=training)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A study of which every run is there: two devices are 1.6 times as fast, four twice, ± 1 %."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HARNESS_SITE", site_file(tmp_path))
    found = expand(sweep_of(1, "strong", [1, 2, 4], micro_batch_size=4), load_site(site_file(tmp_path)))
    for number, task in enumerate(found.tasks):
        run = a_run(tmp_path / "runs", task, "completed", number=number, series=found.sweep.name)
        speed = {1: 1000, 2: 1600, 4: 2000}[task.devices] * (0.99, 1.0, 1.01)[task.point.repeat]
        useful = {1: 900, 2: 500, 4: 400}[task.devices]
        run.summary.write_text(summary(task.devices, speed, useful).model_dump_json(), encoding="utf-8")
    return ["-e", "1", "--gpus", "1,2,4", "--strong", "--micro-batch-size", "4"]


def test_the_study_shows_speed_up_efficiency_their_intervals_and_what_explains_them(words: list[str], say: Say) -> None:
    told = say("sweep", "scaling", *words, "--json").json
    first, _, last = ups = [size["speed_up"] for size in told["points"]]
    assert [round(up["mean"], 6) for up in ups] == [1.0, 1.6, 2.0]
    assert first["low"] is None and last["low"] < 2.0 < last["high"] < 2.1
    assert [round(size["efficiency"]["mean"], 6) for size in told["points"]] == [1.0, 0.8, 0.5]
    # 640 tokens in each step: one device computes 900, four 400 each.
    assert told["points"][2]["values"]["computation_scalability"]["mean"] == pytest.approx(900 / 1600)
    assert "the largest loss is devices that wait for their host" in told["limit"]
    said = say("sweep", "scaling", *words).out
    assert re.search(r"^ +4 .*2\.00 \(1\.9.*50\.0 % \(4.*\n(.*\n)*What explains it", said, re.M), said


def test_a_file_of_ones_own_with_the_devices_in_its_zip_is_scaled_too(
    words: list[str], tmp_path: Path, say: Say
) -> None:
    asked = {"name": "mine", "base": {"exercise": 1}, "zip": {"gpus_per_node": [1, 2], "micro_batch_size": [4, 2]}}
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(asked))
    for number, task in enumerate(expand(Sweep.model_validate(asked), load_site(str(tmp_path / "here.yaml"))).tasks):
        run = a_run(tmp_path / "runs", task, "completed", number=100 + number, series="mine")
        run.summary.write_text(summary(task.devices, 1000 * task.devices, 900).model_dump_json(), encoding="utf-8")
    points = say("sweep", str(file), "--json").json["points"]
    assert [point["speed_up"]["mean"] for point in points] == [1.0, 2.0]
