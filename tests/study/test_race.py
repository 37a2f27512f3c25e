"""`lesson race`: the slow script and its solutions, what is another training, and what is said of an attempt."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.study import race as race_command
from harness.common.run_folder.run_files import METRICS
from harness.experiment.exercises import OwnTraining
from harness.measure.request import load_summary
from harness.run import Run, all_runs
from harness.run.record import SeriesPart
from harness.study import race
from tests.study import check_shared
from tests.study.check_shared import NOISE
from tests.study.kit import Say
from tests.waiting import limit_s

PATCHES = sorted((race.START.parent / "race_solutions").glob("*.patch"))
SAME = race.Trained(
    ranks=2,
    steps=3,
    parameters=1000,
    samples=[8, 8, 8],
    losses={(step, rank): 3.0 - step for step in range(3) for rank in range(2)},
    sent_bytes=4016.0,
)


# ---- The files


@pytest.mark.parametrize("file", [race.START, race.SOLVED], ids=lambda file: str(file.name))
def test_the_script_is_short_and_imports_nothing_of_the_kit(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    nodes = [*ast.walk(ast.parse(text))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} == {"__future__", "json", "os", "pathlib", "tempfile", "torch"}
    assert "#" not in text.replace("# type: ignore", "")  # a comment would give a loss away


def patched(folder: Path, count: int) -> Path:
    """A copy of the race with the first solutions."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(race.START, folder / "race.py")
    for patch in PATCHES[:count]:
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True, timeout=limit_s())
    return folder / "race.py"


def test_the_solutions_one_after_the_other_make_the_solved_script_and_each_says_why(tmp_path: Path) -> None:
    steps = [patched(tmp_path / str(count), count).read_text() for count in range(len(PATCHES) + 1)]
    assert len(PATCHES) == 5 and len({*steps}) == 6
    assert (steps[0], steps[-1]) == (race.START.read_text(), race.SOLVED.read_text())
    assert all(patch.read_text().startswith("The report ") for patch in PATCHES)


# ---- What is another training


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"samples": [16, 8, 8]}, []),  # loads ahead
        ({"losses": {place: loss * (1 + 1e-5) for place, loss in SAME.losses.items()}}, []),
        ({"ranks": 1}, ["x.py trains on 1 rank, and the race on 2: let each rank train."]),
        ({"steps": 2, "samples": [12, 12]}, ["x.py trains 2 steps, and the race has 3: train the same steps.", "12"]),
        ({"parameters": 500}, ["x.py trains 500 parameters, and the race 1,000: keep the model."]),
        ({"parameters": None}, ["x.py trains an unknown number of parameters, and the race 1,000: keep the model."]),
        (
            {"samples": [4, 4, 4]},
            ["x.py takes 4 samples in a step and 12 in all, and the race 8 and 24: train the same samples in the same"],
        ),
        ({"samples": [8, 8, 0]}, ["x.py takes 8 samples in a step and 16 in all"]),
        (
            {"losses": SAME.losses | {(1, 1): 2.001}},
            [
                "x.py has the loss 2.001000 in step 1 on rank 1, and the race 2.000000: keep the data, their order, "
                "the numbers, and backward from the loss itself."
            ],
        ),
        ({"losses": SAME.losses | {(2, 0): float("nan")}}, ["x.py has the loss nan in step 2 on rank 0"]),
        ({"losses": {}}, ["x.py has no recorded loss in step 0 on rank 0"]),
        (
            {"sent_bytes": 2016.0},
            [
                "x.py all-reduces 2.02 kB on each rank in a step, and the gradients of 1,000 parameters need 4.00 kB: "
                "let DDP send all of them, in float32."
            ],
        ),
        ({"sent_bytes": 0.0}, ["x.py all-reduces 0 B on each rank in a step"]),
    ],
    ids=str,
)
def test_another_training_is_told_with_both_numbers(change: dict[str, Any], said: list[str]) -> None:
    found = [*race.differences("x.py", SAME._replace(**change), SAME)]
    assert len(found) == len(said), found
    assert all(part in sentence for part, sentence in zip(said, found, strict=True)), found


def test_where_no_loss_and_no_message_is_recorded_nothing_is_said_about_them() -> None:
    unknown = SAME._replace(losses={}, sent_bytes=0.0)
    assert not [*race.differences("x.py", unknown, unknown)]
    assert "losses not compared: none were recorded" in race.same_training("x.py", unknown)


# ---- The command, with a stand-in for training


@pytest.fixture
def scripts(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float, int], str]:
    """Writes a script that takes so many milliseconds a step and so many samples on each of two ranks."""
    monkeypatch.chdir(tmp_path)
    asked = {race.START.name: (150.0, 8), race.SOLVED.name: (50.0, 8)}

    def script(name: str, ms: float, samples: int = 8) -> str:
        (tmp_path / name).write_text(f"print({ms}, {samples})\n")
        asked[name] = ms, samples
        return name

    def of(run: Run) -> tuple[float, int]:
        assert isinstance(run.record.experiment, OwnTraining)
        return asked[Path(run.record.experiment.program).name]

    def ms_of(part: SeriesPart, run: Run) -> float | None:
        return of(run)[0] * (1 + NOISE[(part.repeat + 3 * (part.point == "b")) % len(NOISE)] / 100) or None

    def write(folder: Path, ms: float) -> None:
        for rank in range(2):
            start = {"rank": rank, "world_size": 2, "parameters": 1000, "device": "cpu", "versions": {}}
            step = {"rank": rank, "phase": "active", "step_ns": round(ms * 1e6), "samples": of(Run(folder))[1]}
            lines = [{"event": "start", **start}, *({"event": "step", "step": i, "loss": 2, **step} for i in range(3))]
            METRICS.path(folder, rank).parent.mkdir(exist_ok=True)
            METRICS.path(folder, rank).write_text("".join(json.dumps(line) + "\n" for line in lines))

    monkeypatch.setattr(check_shared, "write_metrics", write)
    check_shared.stand_in_for_training(monkeypatch, ms_of)
    return script


def test_the_task_has_the_step_the_target_and_the_next_command(say: Say, scripts: Callable[..., str]) -> None:
    said = say("lesson", "race")
    assert (
        said.code == 0 and "race.py takes 150 ms a step on this machine, and a good repair of it 50.0 ms" in said.words
    )
    assert "race.py my_race.py bash" in said.words and "lesson race my_race.py\n" in said.out
    assert "race_solved" not in said.out
    run = all_runs()[-1]
    assert race.trained(run, load_summary(str(run.path))[1]) == race.Trained(
        2, 3, 1000, [16] * 3, {(step, rank): 2 for step in range(3) for rank in range(2)}, 0.0
    )
    assert say("lesson", "race", "--json").json["ladder"][0]["target_ns"] == pytest.approx(50e6)
    assert len(all_runs()) == 2


def test_an_attempt_has_its_verdict_and_its_place_on_the_ladder(say: Say, scripts: Callable[..., str]) -> None:
    assert say("lesson", "race").code == 0
    half, all_of_it = scripts("half.py", 100), scripts("all.py", 50)
    of_half = say("lesson", "race", half, "--runs", "3")
    assert of_half.code == 0 and "half.py takes 100 ms a step, and the target is 50.0 ms: " in of_half.words
    assert "the target is not reached" in of_half.words and "worse: " in of_half.out
    assert "half.py is the same training: 2 ranks, 3 steps, 1,000 parameters, 16 samples a step" in of_half.words
    of_all = say("lesson", "race", all_of_it, "--runs", "4", "--json").json
    assert of_all["check"]["verdict"] == "same" and of_all["check"]["b"]["n"] == 4
    rows = [(Path(rung["file"]).name, rung["runs"], round(rung["way"], 1)) for rung in of_all["ladder"]]
    assert rows == [("all.py", 4, 1.0), ("half.py", 3, 0.5), ("race.py", 1, 0.0)]
    made = len(all_runs())
    assert say("lesson", "race", half, "--runs", "4").code == 0 and len(all_runs()) == made + 2  # it is continued
    assert say("lesson", "race", half, "--again", "--json").json["check"]["b"]["n"] == 4
    assert say("lesson", "race", half, "--json").json["check"]["b"]["n"] == 4 and len(all_runs()) == made + 10


def test_another_training_has_no_time_no_place_and_only_one_pair_of_runs(say: Say, scripts: Callable[..., str]) -> None:
    said = say("lesson", "race", scripts("cheat.py", 20, 4))
    assert (said.code, len(all_runs())) == (1, 2)
    assert "cheat.py takes 8 samples in a step and 24 in all, and the race 16 and 48" in said.words
    assert "20 ms" not in said.out
    again = say("lesson", "race", "cheat.py", "--json")
    assert (again.code, len(again.json["differences"]), again.json["check"]) == (1, 1, None)
    assert [rung["file"] for rung in say("lesson", "race", "--json").json["ladder"]] == [str(race.START)]


def test_a_script_that_fails_is_started_once(say: Say, scripts: Callable[..., str]) -> None:
    said = say("lesson", "race", scripts("broken.py", 0))
    assert said.code == 3 and "broken.py failed: bash slurm.sh logs local-" in said.words
    assert len(all_runs()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "race: none.py is not a Python file here: make a copy first: cp "),
        (["."], "race: . is not a Python file here"),
        (["half.py", "--runs", "1"], "--runs: got '1'"),
        (["half.py", "-g", "0"], "-g: got '0'"),
        (["half.py", "--site", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_request_starts_nothing(say: Say, scripts: Callable[..., str], words: list[str], said: str) -> None:
    scripts("half.py", 100)
    found = say("lesson", "race", *words)
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1
    assert all_runs() == []


def test_runs_that_cost_are_not_started_without_a_word(
    say: Say, scripts: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_command, "wants_runs", lambda *_: False)
    found = say("lesson", "race")
    assert found.code == 2 and "add --yes to start what is missing at local" in found.err and all_runs() == []


# ---- Real trainings


SIZES = "EPOCHS, SAMPLES, BATCH = 4, 1024, 64"
NETWORK = "Network().to(device)"
HOOK = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook"  # gloo has no bf16


@pytest.mark.train
@pytest.mark.long  # a quarter of an hour: five checks of eight trainings each
@pytest.mark.parametrize("step", range(1, len(PATCHES) + 1))
def test_each_solution_makes_the_step_shorter(runs: Path, tmp_path: Path, say: Say, step: int) -> None:
    files = [patched(tmp_path / str(count), count) for count in (step - 1, step)]
    launches = [f"run -g 2 {' '.join(race.FLAGS)} -- {file}" for file in files]
    found = say("check", *launches, "--metric", race.METRIC, "--json")
    assert (found.code, found.json["verdict"]) == (0, "better"), found.out


@pytest.mark.train
@pytest.mark.long  # its sentences are those of numbers above; here the observer and a real recording give them
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((SIZES, "EPOCHS, SAMPLES, BATCH = 4, 512, 64"), "trains 32 steps"),
        ((SIZES, "EPOCHS, SAMPLES, BATCH = 4, 512, 32"), "takes 64 samples in a step"),
        (("nn.Linear(1024, 1024)", "nn.Identity()"), "parameters, and the race 2,132,000: keep the model"),
        (("self.samples[index]", "self.samples[index % 64]"), "in step 0 on rank 0, and the race 3."),
        ((f"DistributedDataParallel({NETWORK}, broadcast_buffers=False)", NETWORK), "all-reduces 512 B on each rank"),
        (("    optimizer = ", f"    model.register_comm_hook(None, {HOOK})\n    optimizer = "), "all-reduces 4.26 MB"),
    ],
    ids=["steps", "batch", "model", "data", "messages", "fp16"],
)
def test_each_cheat_is_refused(runs: Path, tmp_path: Path, say: Say, change: tuple[str, str], said: str) -> None:
    text = race.SOLVED.read_text()
    imports = f"import {HOOK.rpartition('.')[0].rpartition('.')[0]}.default_hooks\nfrom torch import nn\n"
    (tmp_path / "cheat.py").write_text(text.replace("from torch import nn\n", imports).replace(*change))
    found = say("lesson", "race", str(tmp_path / "cheat.py"))
    assert found.code == 1 and said in found.words, found
