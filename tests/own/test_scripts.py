"""The observer beside trainings that know nothing of it: it counts their steps, times their phases, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from own_trainings import TRAININGS

from tests.own.forked_trainings import run_forked
from tests.own.observed_trainings import WINDOW, Ended, start, training_of

pytestmark = [pytest.mark.train, pytest.mark.timed]

STEPS = 14
FIRST = WINDOW["skip"] + WINDOW["wait"]
START = FIRST + WINDOW["warmup"]
END = START + WINDOW["active"]
# Here the profiler is switched on or off, which the training's own stopwatch counts; the first step starts everything.
SWITCHING = {0, FIRST - 1, FIRST, START - 1, START, END - 1, END}
NOT_SEEN = {"pipelining": ("data_ns",)}  # it has no DataLoader: what it does for its data is in no phase
KNOWN_BEFORE = ("transformers_trainer", "lightning_ddp")
LONG = ("accelerate_loop", "lightning_ddp", "two_optimizers", "lbfgs", "evaluate_only")
PARTS = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in TRAININGS]
)
def observed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Each training once, with its own launcher and the observer."""
    training = training_of(request.param)
    folder = tmp_path_factory.mktemp(training.name)
    yield start(training, folder, ["--steps", str(STEPS)], asked={}, first=True).ended()


def test_the_observer_counts_the_steps_exactly(observed: Ended) -> None:
    for rank in observed.ranks:
        assert observed.truth(rank)["steps"] == STEPS
        assert [line["step"] for line in observed.steps(rank)] == list(range(STEPS))


def test_how_many_steps_there_will_be_is_known_where_a_framework_says_it(observed: Ended) -> None:
    for rank in observed.ranks:
        heartbeat = json.loads((observed.folder / "memory" / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert heartbeat["planned"] == (STEPS if observed.training.name in KNOWN_BEFORE else None)


def test_phases_are_those_of_the_training_to_two_percent_of_a_step(observed: Ended, tmp_path: Path) -> None:
    """On a busy machine, what comes between two readings of a clock may take longer: one of three runs must show it."""
    for attempt in range(3):
        ended = observed if attempt == 0 else _again(observed, tmp_path / str(attempt))
        wrong = {f"{part} of rank {rank}": off for rank in ended.ranks for part, off in _apart(ended, rank).items()}
        if all(abs(off) <= 0.02 for off in wrong.values()):
            return
    pytest.fail(f"parts of a step, by which the observer differs: {wrong}")


def _again(ended: Ended, folder: Path) -> Ended:
    return start(ended.training, folder, ["--steps", str(STEPS)], asked={}, first=True).ended()


def _apart(ended: Ended, rank: int) -> dict[str, float]:
    """How far each part is from the training's own measurement, in steps. Of the steps the median: in one or two,
    another program runs between the two clocks' readings."""
    truth, lines = ended.truth(rank), ended.steps(rank)
    counted = [step for step in range(STEPS) if step not in SWITCHING]
    ends = truth["step_end_unix_ns"]
    whole = {step: ends[step] - ends[step - 1] for step in counted}
    off = {
        part: [lines[step][part] - truth[part][step] for step in counted]
        for part in PARTS
        if truth[part] is not None and part not in NOT_SEEN.get(ended.training.name, ())
    }
    off["step_ns"] = [lines[step]["step_ns"] - whole[step] for step in counted]
    return {part: median(each) / median(whole.values()) for part, each in off.items()}


def test_all_ranks_record_the_same_steps(observed: Ended) -> None:
    for rank in observed.ranks:
        names = [event["name"] for event in observed.trace(rank) if event.get("cat") == "user_annotation"]
        marks = sorted(int(name.removeprefix("batch_")) for name in names if name.startswith("batch_"))
        assert marks == list(range(START, END)), rank


def test_the_losses_are_bit_for_bit_those_without_the_observer(observed: Ended, tmp_path: Path) -> None:
    run_forked(observed.training, ["--steps", str(STEPS), "--truth", str(tmp_path / "truth")], logs_in=tmp_path)
    alone = Ended(observed.training, tmp_path, "")
    for rank in observed.ranks:
        assert observed.truth(rank)["losses"] == alone.truth(rank)["losses"]


@pytest.mark.long
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
