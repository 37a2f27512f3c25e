"""Where a program marks one step at most, PyTorch's own ranges of its optimizer count the steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from harness.analysis.process.kinds import load_rules
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Window
from tests.synthetic.columns import Made

MS = 1_000_000
ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"
Part = tuple[str, int, str | None]
"""The kernels of one forward and backward pass, how many, and the optimizer that ends them."""
ONE = [("gemm", 20, ADAM)]


def steps_of(made: Made) -> Any:
    return prepare_process(views(made.trace())[0], Window.STEPS, load_rules()).steps


def loop(lengths: Sequence[int], parts: Sequence[Part], rest: int = 0, seed: int = 0) -> tuple[Made, list[int]]:
    """A loop of as many steps as lengths, from 10 ms on; and the ends of its steps' last optimizers."""
    made, at, ends, chance = Made(), 10 * MS, [], random.Random(seed)
    for length in lengths:
        each = (length - rest) // len(parts)
        for kernel, count, optimizer in parts:
            for i in range(count):
                start = at + (each - MS) * i // count
                made.event(start, start + 2000, f"{kernel}_{chance.randrange(50) and i % 5}", launch_ns=start)
            if optimizer:
                made.range(at + each - MS // 2, at + each, optimizer)
            at += each
        ends.append(at)
        at += rest
    return made, ends


def in_one_mark(made: Made, ends: list[int], rest: int = 0) -> Any:
    return steps_of(made.step(10 * MS, ends[-1] + rest, 0))


@pytest.mark.parametrize("seed", range(60))
def test_random_loops_have_the_steps_that_they_were_made_of(seed: int) -> None:
    """Gradient accumulation, two optimizers, one class of optimizer twice: always the loop's own steps."""
    chance = random.Random(seed)
    parts = chance.choice(
        [
            ONE,
            [("gemm", chance.randint(3, 20), None)] * chance.randint(1, 4) + ONE,
            [("gemm", 12, ADAM), ("conv", 20, SGD)],
            [("gemm", 8, ADAM), ("conv", 15, ADAM)],
            [*[("conv", 9, SGD)] * chance.randint(2, 5), ("gemm", 20, ADAM)],
            [("gemm", 20, ADAM), ("conv", 2, ADAM), ("norm", 30, ADAM)],
        ]
    )
    lengths = [chance.randint(95, 105) * MS for _ in range(chance.randint(5, 12))]
    rest = chance.choice([0, 2 * MS])
    made, ends = loop(lengths, parts, rest, seed)
    found = steps_of(made)
    assert found.source == "range " + (ADAM if parts[-1][2] == ADAM else SGD)
    whole = [b - a for a, b in pairwise(ends)]
    assert len(found.names) == len(whole)
    assert all(abs(a - sum(lengths) / len(lengths)) < 12 * MS for a in found.durations_ns.tolist())
    marked = in_one_mark(made, ends, rest)
    assert len(marked.names) == len(lengths)
    assert marked.start_ns.tolist() == [10 * MS, *ends[:-1]]
    assert marked.end_ns.tolist() == [*ends[:-1], ends[-1] + rest]
    assert marked.window == (10 * MS, ends[-1] + rest)


def test_without_a_mark_a_step_lasts_from_one_optimizer_to_the_next() -> None:
    made, ends = loop([100 * MS] * 8, ONE)
    found = steps_of(made)
    assert (found.source, found.start_ns.tolist()) == (f"range {ADAM}", ends[:-1])
    assert (found.counted.all(), set(found.durations_ns.tolist())) == (True, {100 * MS})


@pytest.mark.parametrize(
    "parts",
    [
        ONE,
        [("gemm", 20, ADAM), ("conv", 20, ADAM)],
        [("gemm", 20, ADAM), ("conv", 20, SGD)],
        [("conv", 9, SGD)] * 5 + [("gemm", 20, ADAM)],
        [("gemm", 20, ADAM), ("copy", 1, ADAM)],
        [("gemm", 90, ADAM)] + [("gemm", 3, ADAM)] * 12,
        [("gemm", 20, None)],
    ],
)
def test_one_step_in_one_mark_stays_one_step(parts: list[Part]) -> None:
    """Also with several optimizers in it, or one of each parameter."""
    made, ends = loop([100 * MS], parts)
    found = in_one_mark(made, ends)
    assert (found.source, found.durations_ns.tolist()) == ("ProfilerStep", [ends[0] - 10 * MS])


def test_two_marks_count_whatever_the_optimizer_does() -> None:
    made, ends = loop([100 * MS] * 8, ONE)
    made.step(10 * MS, ends[3], 0).step(ends[3], ends[7], 1)
    assert (steps_of(made).source, steps_of(made).durations_ns.tolist()) == ("ProfilerStep", [400 * MS] * 2)


def test_one_numbered_range_around_the_loop_is_no_step_either() -> None:
    made, ends = loop([100 * MS] * 8, ONE)
    assert len(steps_of(made.range(10 * MS, ends[-1], "step 0")).names) == 8
    many, _ = loop([100 * MS] * 8, ONE)
    for i in range(8):
        many.range((10 + 100 * i) * MS, (110 + 100 * i) * MS, f"step {i}")
    assert steps_of(many).source == "range step"


def test_optimizers_outside_of_the_mark_do_not_count() -> None:
    made, ends = loop([100 * MS] * 8, ONE)
    assert steps_of(made.step(ends[2], ends[6], 0)).start_ns.tolist() == ends[2:6]


def test_of_work_that_never_recurs_no_steps_are_told() -> None:
    made, at = Made(), 0
    for i in range(9):
        for j in range(20):
            made.event(at + j * MS, at + j * MS + MS // 2, f"kernel_{i}_{j}")
        made.range(at + 20 * MS, at + 21 * MS, ADAM)
        at += 25 * MS
    assert steps_of(made).source == "none"


def test_of_a_recording_that_is_mostly_something_else_no_optimizer_tells_the_steps() -> None:
    made, _ = loop([100 * MS] * 5, ONE)
    assert not steps_of(made.event(2000 * MS, 2001 * MS, "later")).source.startswith("range")


def test_an_optimizer_that_steps_once_counts_nothing() -> None:
    made, _ = loop([100 * MS] * 8, ONE)
    assert not steps_of(made.range(5 * MS, 6 * MS, SGD)).source.startswith("range")


def test_the_device_may_be_behind_the_host() -> None:
    made = Made()
    for i in range(8):
        for j in range(10):
            launch, start = i * 10 * MS + j * MS // 2, i * 100 * MS + j * 10 * MS
            made.event(start + MS, start + 9 * MS, f"k{j}", launch_ns=launch)
        made.range(i * 10 * MS + 8 * MS, i * 10 * MS + 9 * MS, ADAM)
    found = steps_of(made)
    assert found.on_device and set(found.durations_ns.tolist()[:-1]) == {100 * MS}
