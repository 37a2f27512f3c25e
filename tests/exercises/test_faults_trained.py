"""Megatron really trains with faults: its metrics and its checkpoints show the time that the faults say they took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.exercise_3 import megatron_runs
from tests.exercises.launching import completed

pytestmark = [pytest.mark.train, pytest.mark.long]

FAULTS = (
    "data-stall,ms=150,rank=1,every=3", "host-stall,ms=100,in=backward,rank=0,every=2", "pause,ms=50,every=2",
    "slow-checkpoint,ms=200,rank=all", "uneven-stages",
)  # fmt: skip
# Both ranks of a pipeline read data: the first for the tokens, the last for the labels.
OPTIONS = ("--pp", "2", "--global-batch-size", "2", "--iters", "6", "--checkpoint-every", "3")


def injected(folder: Path, rank: int) -> dict[str, list[dict[str, Any]]]:
    """The lines of a rank's faults, by fault."""
    text = (folder / f"faults/rank{rank}.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return {name: [line for line in lines if line["fault"] == name] for name in map(name_of, FAULTS)}


def name_of(fault: str) -> str:
    return fault.partition(",")[0]


def test_every_injection_is_in_the_phase_and_the_step_that_it_names(tmp_path: Path) -> None:
    asked = [word for fault in FAULTS for word in ("--fault", fault)]
    run = completed(megatron_runs.train(tmp_path / "run", *OPTIONS, *asked))
    found = [injected(run.folder, rank) for rank in (0, 1)]
    assert [[line["step"] for line in each["data-stall"]] for each in found] == [[], [2, 5]]
    assert [[line["step"] for line in each["host-stall"]] for each in found] == [[1, 3, 5], []]
    for rank, each in enumerate(found):
        steps = run.steps(rank)
        assert all(steps[line["step"]]["data_ns"] >= line["ns"] >= 150_000_000 for line in each["data-stall"])
        assert all(steps[line["step"]]["backward_ns"] >= line["ns"] >= 100_000_000 for line in each["host-stall"])
        pauses = each["pause"]  # by a process that needs a core for each
        assert all(line["ns"] >= 50_000_000 for line in pauses)
        assert sum(step["continued"] for step in steps) <= len(pauses) <= 3
        late = each["slow-checkpoint"]  # of each rank that wrote files
        assert {line["step"] for line in late} in ({2, 5}, set())
        assert all(line["ns"] >= 200_000_000 for line in late)
    assert found[0]["slow-checkpoint"]
    (saved,) = (run.folder / "checkpoints").glob("step_*")
    assert saved.name == "step_6", "the newest checkpoint alone"
    assert {path.name for path in saved.iterdir()} >= {"common.pt", "__0_0.distcp", "__1_0.distcp"}
    first, last = ((saved / f"__{rank}_0.distcp").stat().st_size for rank in (0, 1))
    assert last > 1.2 * first, "three layers against one"
