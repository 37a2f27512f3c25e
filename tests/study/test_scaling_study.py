"""A sweep over devices: speed-up and efficiency with intervals, what limits them, and threads that stay as many."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.analysis.job.pop import Times, from_times
from harness.analysis.summary import Efficiency, RankTraining, Summary
from harness.compare.points import RepeatedMean, Size, what_limits
from harness.site.site import load_site
from harness.study.sweeps.axes import Sweep
from harness.study.sweeps.expand import expand, threads_of
from tests.study.kit import Say
from tests.study.series_shared import a_run, site, site_file

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
    assert ", more than the ideal: look at the smallest size first (slurm.sh report r)" in said


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
