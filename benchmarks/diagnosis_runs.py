"""Trainings with and without a fault, for bench_diagnosis.py: what was injected, and what the report found.

The launchers are the real ones; ranks are forked from a process that has imported PyTorch, which saves most of a small
training's time. Each run keeps its folder, so that a later version can measure it again:

    OUT/RUN/asked.json   a Case
    OUT/RUN/run/         what the training left: traces, metrics, the faults' records
    OUT/RUN/found.json   what the report found in it
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.analysis.summary import Window
from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config
from harness.measure.jobs import summarise
from harness.measure.paths import measure_files, trace_files
from tests.exercise_3 import megatron_runs
from tests.exercises.launching import train

SKIP, STEPS = {1: 6, 2: 4, 3: 2}, {1: 24, 2: 12, 3: 9}
Found = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One training. pair: the runs that are compared with each other. words: more options of the script. turn: which
    time it is made."""

    exercise: int
    ranks: int
    seed: int
    pair: str
    fault: str | None
    words: tuple[str, ...] = ()
    turn: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder."""
        what = "+".join(filter(None, (self.fault, *self.words))) or "healthy"
        again = f"-again{self.turn}" if self.turn else ""
        return f"e{self.exercise}x{self.ranks}-s{self.seed}-{self.pair}-{what.replace('--', '')}{again}"

    @property
    def injected(self) -> dict[str, str]:
        """The keys of its fault."""
        words = self.fault.split(",")[1:] if self.fault else []
        return dict(word.split("=") for word in words)


def make(case: Case, out: Path) -> Found:
    """Train, and measure. What was begun and not ended is made anew. Raises RuntimeError: the training failed."""
    place = out / case.folder
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    window = ("--skip", SKIP[case.exercise], "--wait", 0, "--warmup", 1, "--active", STEPS[case.exercise])
    fault = ("--fault", case.fault) if case.fault else ()
    options = ("--seed", case.seed, *window, "--profiler", "torch", *fault, *case.words)
    code, log = _train(case, place / "run", [str(word) for word in options])
    if code:
        raise RuntimeError(f"{case.folder} failed:\n{log[-2000:]}")
    shutil.rmtree(place / "run" / "checkpoint", ignore_errors=True)
    (place / "asked.json").write_text(json.dumps(asdict(case)), encoding="utf-8")
    return measure(place)


def kept(out: Path) -> Iterator[tuple[Case, Path]]:
    """The runs that were made, in the order in which they were."""
    for path in sorted(out.glob("*/asked.json"), key=lambda path: path.stat().st_mtime_ns):
        asked = json.loads(path.read_text(encoding="utf-8"))
        yield Case(**{**asked, "words": tuple(asked["words"])}), path.parent


def _train(case: Case, folder: Path, options: list[str]) -> tuple[int, str]:
    if case.exercise == 3:
        batch = () if "--global-batch-size" in options else ("--global-batch-size", "16")
        run = megatron_runs.train(folder, *options, "--pp", "2", *batch, processes=case.ranks)
        return run.exit_code, run.log
    if case.exercise == 1:
        run = train("exercise_1_DDP/train.py", folder, *options, model="tiny-llama", processes=case.ranks)
        return run.exit_code, run.log
    config = folder.parent / "ds_config.json"
    config.write_text(as_json(deepspeed_config(DeepSpeed(), tiny=True, auto_batch=True)))
    words = [*options, "--deepspeed-config", str(config)]
    run = train("exercise_2_DeepSpeed/train.py", folder, *words, config="deepspeed", processes=case.ranks)
    return run.exit_code, run.log


def measure(place: Path) -> Found:
    """Step, findings and what-ifs as the report has them, and what was really injected."""
    asked = json.loads((place / "asked.json").read_text(encoding="utf-8"))
    read = measure_files(trace_files([place / "run"]), Window.STEPS, workers=1)
    (summary,) = summarise(read.parts, read.broken, [place / "run"])
    replay = summary.replay
    assert replay is not None, "the traces gave no replay"
    found: Found = {
        "step_ns": replay.step_ns,
        "error": replay.error,
        "model_work_ns": replay.model_work_ns,
        "findings": [found.model_dump() for found in summary.findings],
        "what_ifs": {what.name: what.model_dump() for what in replay.what_ifs},
        "injected_ns": _injected(place / "run", asked["exercise"]),
    }
    (place / "found.json").write_text(json.dumps(found), encoding="utf-8")
    return found


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
