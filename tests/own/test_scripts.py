"""The observer beside trainings that know nothing of it: it counts their steps, times their phases, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_trainings import TRAININGS

from tests.own.observed_trainings import WINDOW, Ended, start, training_of

pytestmark = pytest.mark.train

STEPS = 14
PARTS = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
START = WINDOW["skip"] + WINDOW["wait"] + WINDOW["warmup"]
END = START + WINDOW["active"]
KNOWN_BEFORE = ("transformers_trainer", "lightning_ddp")


@pytest.fixture(
    scope="module",
    params=[
        "transformers_trainer alone",  # a library's loop; test_slurm_own.py has one of two ranks
        *(pytest.param(name, marks=pytest.mark.long) for name in TRAININGS),
    ],
)
def observed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Each training once, with its own launcher and the observer."""
    name, _, alone = request.param.partition(" ")
    training = replace(training_of(name), launcher="python", ranks=1) if alone else training_of(name)
    folder = tmp_path_factory.mktemp(training.name)
    yield start(training, folder, ["--steps", str(STEPS)], asked={}).ended()


def test_the_observer_counts_the_steps_exactly(observed: Ended) -> None:
    for rank in observed.ranks:
        assert observed.truth(rank)["steps"] == STEPS
        assert [line["step"] for line in observed.steps(rank)] == list(range(STEPS))


def test_how_many_steps_there_will_be_is_known_where_a_framework_says_it(observed: Ended) -> None:
    for rank in observed.ranks:
        heartbeat = json.loads((observed.folder / "memory" / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert heartbeat["planned"] == (STEPS if observed.training.name in KNOWN_BEFORE else None)


def test_every_phase_of_the_training_is_in_its_steps(observed: Ended) -> None:
    for rank in observed.ranks:
        truth, lines = observed.truth(rank), observed.steps(rank)
        parts = [part for part in PARTS if truth[part] is not None and any(truth[part])]
        assert parts
        assert [(line["step"], part) for line in lines for part in parts if line[part] <= 0] == []
        assert all(sum(line[part] for part in PARTS) <= line["step_ns"] for line in lines)


def test_all_ranks_record_the_same_steps(observed: Ended) -> None:
    for rank in observed.ranks:
        names = [event["name"] for event in observed.trace(rank) if event.get("cat") == "user_annotation"]
        marks = sorted(int(name.removeprefix("batch_")) for name in names if name.startswith("batch_"))
        assert marks == list(range(START, END)), rank


@pytest.mark.long  # other ways to start the same trainings
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lightning_ddp", {"launcher": "python", "words": ("lightning_ddp.py", "--devices", "2")}),
        ("deepspeed_engine", {"launcher": "deepspeed"}),
        ("plain_ddp", {"launcher": "python", "ranks": 1}),
    ],
)
def test_another_launcher_changes_nothing(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Lightning starts its second rank itself, from within the first; DeepSpeed has a launcher of its own."""
    training = replace(training_of(name), **changes)
    ended = start(training, tmp_path, ["--steps", str(STEPS)], asked={}).ended()
    test_the_observer_counts_the_steps_exactly(ended)
    test_all_ranks_record_the_same_steps(ended)
