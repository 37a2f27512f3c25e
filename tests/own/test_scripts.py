"""The observer beside trainings that know nothing of it: it counts their steps, times their phases, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from own_trainings import TRAININGS

from tests.own.forked_trainings import run_forked
from tests.own.observed_trainings import WINDOW, Ended, run

pytestmark = pytest.mark.train

STEPS = 14
FIRST = WINDOW["skip"] + WINDOW["wait"]
START = FIRST + WINDOW["warmup"]
END = START + WINDOW["active"]
# Here the profiler is switched on or off, which the training's own stopwatch counts; the first step starts everything.
SWITCHING = {0, FIRST - 1, FIRST, START - 1, START, END - 1, END}
PARTS = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")


@pytest.fixture(scope="module", params=TRAININGS)
def observed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Each training once, with its own launcher and the observer."""
    training = TRAININGS[request.param]
    yield run(training, tmp_path_factory.mktemp(training.name), ["--steps", str(STEPS)], asked={})


def test_the_observer_counts_the_steps_exactly(observed: Ended) -> None:
    for rank in observed.ranks:
        assert observed.truth(rank)["steps"] == STEPS
        assert [line["step"] for line in observed.steps(rank)] == list(range(STEPS))


def test_phases_are_those_of_the_training_to_two_percent_of_a_step(observed: Ended) -> None:
    for rank in observed.ranks:
        truth, lines = observed.truth(rank), observed.steps(rank)
        counted = [step for step in range(STEPS) if step not in SWITCHING]
        ends = truth["step_end_unix_ns"]
        whole = sum(ends[step] - ends[step - 1] for step in counted)
        seen = {part: sum(lines[step][part] for step in counted) for part in PARTS}
        wrong = {
            part: (seen[part] - sum(truth[part][step] for step in counted)) / whole
            for part in PARTS
            if truth[part] is not None
        }
        wrong["step_ns"] = sum(lines[step]["step_ns"] for step in counted) / whole - 1
        assert {part: round(share, 3) for part, share in wrong.items() if abs(share) > 0.02} == {}, (
            rank,
            wrong,
        )


def test_all_ranks_record_the_same_steps(observed: Ended) -> None:
    for rank in observed.ranks:
        names = [event["name"] for event in observed.trace(rank) if event.get("cat") == "user_annotation"]
        marks = sorted(int(name.removeprefix("batch_")) for name in names if name.startswith("batch_"))
        assert marks == list(range(START, END)), rank


def test_the_losses_are_bit_for_bit_those_without_the_observer(observed: Ended, tmp_path: Path) -> None:
    run_forked(
        observed.training, ["--steps", str(STEPS), "--truth", str(tmp_path / "truth")], logs_in=tmp_path
    )
    alone = Ended(observed.training, tmp_path, "")
    for rank in observed.ranks:
        assert observed.truth(rank)["losses"] == alone.truth(rank)["losses"]
