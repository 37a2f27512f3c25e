"""Trainings with and without a fault, for bench_diagnosis.py: what was injected, and what the report found.

The launchers are the real ones; ranks are forked from a process that has imported PyTorch, which saves most of a small
training's time.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.analysis.summary import Summary
from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed_config import deepspeed_config
from harness.measure.paths import measure_one
from tests.exercise_3 import megatron_runs
from tests.exercises.launching import train

SKIP, STEPS = {1: 6, 2: 4, 3: 2}, {1: 24, 2: 12, 3: 6}
Record = dict[str, Any]


@contextmanager
def trained(exercise: int, seed: int, *words: str) -> Iterator[Path]:
    """The folder of one training with two ranks; it is removed afterwards. Raises RuntimeError: it failed."""
    place = Path(tempfile.mkdtemp(prefix="diagnosis-"))
    window = ("--skip", SKIP[exercise], "--wait", 0, "--warmup", 1, "--active", STEPS[exercise])
    options = [str(word) for word in ("--seed", seed, *window, "--profiler", "torch", *words)]
    try:
        code, log = _start(exercise, place / "run", options)
        if code:
            raise RuntimeError(f"exercise {exercise} with {' '.join(options)} failed:\n{log[-2000:]}")
        yield place / "run"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _start(exercise: int, folder: Path, options: list[str]) -> tuple[int, str]:
    if exercise == 3:
        run = megatron_runs.train(folder, *options, "--pp", "2", "--global-batch-size", "16")
        return run.exit_code, run.output
    if exercise == 1:
        done = train("exercise_1_DDP/train.py", folder, *options, model="tiny-llama")
        return done.code, done.stderr
    config = folder.parent / "ds_config.json"
    config.write_text(deepspeed_config(DeepSpeed(), tiny=True, auto_batch=True).to_json())
    words = [*options, "--deepspeed-config", str(config)]
    done = train("exercise_2_DeepSpeed/train.py", folder, *words, config="deepspeed")
    return done.code, done.stderr


def observed(exercise: int, seed: int, fault: str | None, words: tuple[str, ...] = ()) -> Record:
    """One training, measured: step, findings and what-ifs as the report has them, and what was really injected."""
    asked = ("--fault", fault) if fault else ()
    with trained(exercise, seed, *asked, *words) as folder:
        summary = measure_one([folder])
        record = _record(summary)
        record["injected_ns"] = _injected(folder, exercise)
    return {"exercise": exercise, "seed": seed, "fault": fault, **record}


def _record(summary: Summary) -> Record:
    replay = summary.replay
    assert replay is not None, "the traces gave no replay"
    return {
        "step_ns": replay.step_ns,
        "error": replay.error,
        "findings": [found.model_dump() for found in summary.findings],
        "what_ifs": [what.model_dump() for what in replay.what_ifs],
    }


def _injected(folder: Path, exercise: int) -> dict[str, float]:
    """What each rank lost per step, by its own record, in the steps that a finding's mean is about: all profiled ones
    but the first."""
    first, last = SKIP[exercise] + 2, SKIP[exercise] + 1 + STEPS[exercise]
    lost: defaultdict[str, float] = defaultdict(float)
    for path in sorted((folder / "faults").glob("rank*.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if first <= line["step"] < last:
                lost[str(line["rank"])] += line["ns"] / (last - first)
    return dict(lost)
