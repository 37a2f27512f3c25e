"""Each exercise really trains with faults: its metrics show the time that the faults say they took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config
from tests.exercise_3 import megatron_runs
from tests.exercises.launching import train

pytestmark = pytest.mark.train

FAULTS = ("data-stall,ms=150,rank=1,every=3", "host-stall,ms=100,in=backward,rank=0,every=2", "pause,ms=50,every=2")
OPTIONS = ("--steps", "6", *(word for fault in FAULTS for word in ("--fault", fault)))
SAVING = ("--checkpoint-every", "3", "--fault", "slow-checkpoint,ms=200,rank=all")


def lines(folder: Path, what: str, rank: int) -> list[dict[str, Any]]:
    text = (folder / what / f"rank{rank}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def check(folder: Path) -> None:
    """Every injection is in the phase and the step that it names."""
    for rank in (0, 1):
        steps = [line for line in lines(folder, "metrics", rank) if line["event"] == "step"]
        injected = lines(folder, "faults", rank)
        found = {name: [line for line in injected if line["fault"] == name] for name in ("data-stall", "host-stall")}
        assert [line["step"] for line in found["data-stall"]] == ([2, 5] if rank == 1 else [])
        assert [line["step"] for line in found["host-stall"]] == ([1, 3, 5] if rank == 0 else [])
        pauses = [line for line in injected if line["fault"] == "pause"]  # by a process that needs a core for each
        assert all(line["ns"] >= 50_000_000 for line in pauses)
        assert sum(step["continued"] for step in steps) <= len(pauses) <= 3
        assert all(steps[line["step"]]["data_ns"] >= line["ns"] >= 150_000_000 for line in found["data-stall"])
        assert all(steps[line["step"]]["backward_ns"] >= line["ns"] >= 100_000_000 for line in found["host-stall"])


def check_saved(folder: Path, *files: str) -> None:
    """The newest checkpoint is there alone, and each rank that wrote files of it was late after the third step."""
    (saved,) = (folder / "checkpoints").glob("step_*")
    assert saved.name == "step_6"
    assert {path.name for path in saved.iterdir()} >= set(files)
    for rank in (0, 1):
        late = [line for line in lines(folder, "faults", rank) if line["fault"] == "slow-checkpoint"]
        assert {line["step"] for line in late} in ({2, 5}, set())
        assert all(line["ns"] >= 200_000_000 for line in late)
    assert [line for line in lines(folder, "faults", 0) if line["fault"] == "slow-checkpoint"]


def asking(*faults: str) -> list[str]:
    return [word for fault in faults for word in ("--fault", fault)]


def of_each_step(folder: Path, fault: str, rank: int) -> list[int]:
    """What a fault took from each step, in nanoseconds."""
    return [line["ns"] for line in lines(folder, "faults", rank) if line["fault"] == fault]


@pytest.mark.long  # as test_faults_kinds.py, in a whole training
def test_exercise_1_with_a_slow_link_below_ddp(tmp_path: Path) -> None:
    more = asking("slow-link,ms=60,rank=1", "small-buckets,kb=600")
    run = train("exercise_1_DDP/train.py", tmp_path / "run", *OPTIONS, *more, *SAVING, model="tiny-llama")
    assert run.code == 0, run.stderr[-3000:]
    check(run.folder)
    check_saved(run.folder, "pytorch_model.bin", "optimizer.bin", "custom_checkpoint_0.pkl", "random_states_1.pkl")
    delays = of_each_step(run.folder, "slow-link", rank=1)
    assert len(delays) == 6
    # 1.2 MB of gradients in buckets of 0.6, which DDP makes anew after the first step.
    assert all(ns >= 2 * 60_000_000 for ns in delays[1:])
    steps = run.steps(1)
    assert all(step["step_ns"] >= ns for ns, step in zip(delays, steps, strict=True))
    # In the first step one message comes before backward.
    assert all(step["backward_ns"] >= ns for ns, step in zip(delays[1:], steps[1:], strict=True))
    assert of_each_step(run.folder, "slow-link", rank=0) == []


@pytest.mark.long
def test_exercise_2_with_checkpoints_of_shards(tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(as_json(deepspeed_config(DeepSpeed(), tiny=True, auto_batch=True)))
    words = [*OPTIONS, *asking("checkpoint,rank=all,every=3", "tiny-kernels"), "--deepspeed-config", str(config)]
    run = train("exercise_2_DeepSpeed/train.py", tmp_path / "run", *words, *SAVING, config="deepspeed")
    assert run.code == 0, run.stderr[-3000:]
    check(run.folder)
    check_saved(run.folder, *(f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)))
    assert [len(of_each_step(run.folder, "checkpoint", rank)) for rank in (0, 1)] == [2, 2]
    assert list(run.folder.glob("checkpoint-rank*")) == []


@pytest.mark.long
def test_exercise_3_with_a_longer_last_stage(tmp_path: Path) -> None:
    """Both ranks of a pipeline read data: the first for the tokens, the last for the labels."""
    words = ["--iters", *OPTIONS[1:], *asking("uneven-stages"), "--pp", "2", "--global-batch-size", "2", *SAVING]
    run = megatron_runs.completed(megatron_runs.train(tmp_path / "run", *words))
    check(run.folder)
    check_saved(run.folder, "common.pt", "__0_0.distcp", "__1_0.distcp")
    first, last = (run.lines(rank)[0]["parameters_of_rank"] for rank in (0, 1))
    table = 1024 * 128  # of embeddings in the first stage, of the output in the last
    layer = (last - table) / 3
    assert first - table == pytest.approx(layer, rel=0.01), "one layer against three"
