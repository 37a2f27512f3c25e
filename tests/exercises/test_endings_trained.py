"""The exercises' own trainings hang, die and compute NaN as they are asked to."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config
from tests.exercise_3 import megatron_runs
from tests.exercises.ending_ranks import all_ended
from tests.exercises.launching import ROOT, TIMEOUT_S, environment, start, wait_for
from tests.waiting import limit_s

pytestmark = [pytest.mark.train, pytest.mark.long]

STEPS, STEP = 6, 3
LOOKED_AT_S = 2.0  # in which a hanging training writes nothing


@contextmanager
def training(exercise: int, fault: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A training of two ranks, of which the second has the fault; at the end nothing of it is left."""
    words = ["--profiler", "none", "--fault", f"{fault},step={STEP},rank=1"]
    if exercise == 3:
        started = subprocess.Popen(
            megatron_runs.command(folder, *words, "--iters", STEPS), cwd=ROOT, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    elif exercise == 2:
        config = folder.with_suffix(".json")
        config.write_text(as_json(deepspeed_config(DeepSpeed(), tiny=True, auto_batch=True)))
        words += ["--steps", str(STEPS), "--deepspeed-config", str(config)]
        started = start("exercise_2_DeepSpeed/train.py", folder, *words, config="deepspeed")
    else:
        started = start("exercise_1_DDP/train.py", folder, *words, "--steps", str(STEPS))
    with all_ended(started):
        yield started


def lines(folder: Path, what: str, rank: int) -> list[dict[str, object]]:
    path = folder / what / f"rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("exercise", "kind"),
    [
        *((1, kind) for kind in ("sleep", "worker-hangs", "order", "other-size", "left-early")),
        *((2, kind) for kind in ("stopped", "missing-collective", "left-early")),
        *((3, kind) for kind in ("child", "worker-stopped", "no-receive", "other-collective", "left-early")),
    ],
)
def test_an_exercise_hangs(exercise: int, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with training(exercise, f"hang,kind={kind}", folder) as started:
        wait_for(lambda: bool(lines(folder, "faults", 1)), "the fault", started)
        time.sleep(LOOKED_AT_S)  # one that does not hang makes steps meanwhile
        assert started.poll() is None
        (line,) = lines(folder, "faults", 1)
        assert (line["fault"], line["step"]) == ("hang", STEP)
        for rank in (0, 1):
            steps = [each["step"] for each in lines(folder, "metrics", rank) if each["event"] == "step"]
            assert steps == list(range(STEP))


@pytest.mark.parametrize(
    ("exercise", "fault", "said"),
    [
        (1, "crash,kind=exit", "(exitcode: 3)"),
        (1, "oom", "error: no memory left"),
        (2, "crash,kind=kill", "(exitcode: -9)"),
        (3, "crash", "RuntimeError: this step failed"),
        (3, "crash,kind=gone", "onnection"),
    ],
)
def test_an_exercise_dies(exercise: int, fault: str, said: str, tmp_path: Path) -> None:
    with training(exercise, fault, tmp_path / "run") as started:
        _, log = started.communicate(timeout=limit_s(TIMEOUT_S))
        assert started.returncode != 0
        assert said in log
        (line,) = lines(tmp_path / "run", "faults", 1)
        assert (line["fault"], line["step"]) == (fault.partition(",")[0], STEP)


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("exercise", [1, 2, 3])
def test_the_loss_of_an_exercise_is_nan(exercise: int, what: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with training(exercise, f"nan,in={what}", folder) as started:
        _, log = started.communicate(timeout=limit_s(TIMEOUT_S))
        assert started.returncode == 0, log[-3000:]
    steps = [each for each in lines(folder, "metrics", 1) if each["event"] == "step"]
    losses = [float(str(each["loss"])) for each in steps]
    known = STEP + (what == "gradient")
    if exercise == 2 and what == "gradient":
        known = STEPS  # DeepSpeed leaves out an update whose gradient is NaN
    assert [math.isnan(loss) for loss in losses] == [step >= known for step in range(STEPS)]
