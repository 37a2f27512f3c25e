"""Where a program marks one step at most, PyTorch's own ranges of its optimizer count the steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.analysis.measuring import steps_of
from tests.synthetic.columns import Made

MS = 1_000_000
ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"
Part = tuple[str, int, str | None]
"""The kernels of one forward and backward pass, how many, and the optimizer that ends them."""
ONE = [("gemm", 20, ADAM)]


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


@pytest.mark.parametrize(("marks", "parts"), [(3, ONE), (2, [("gemm", 9, None), *ONE]), (4, ONE)])
def test_marks_of_several_optimizer_steps_each_are_not_the_steps(marks: int, parts: list[Part]) -> None:
    """As of epochs, or of a program that calls the profiler after some iterations."""
    made, _ = loop([100 * MS] * 8 * marks, parts)
    for mark in range(marks):
        made.step((10 + 800 * mark) * MS, (10 + 800 * (mark + 1)) * MS, mark)
    found = steps_of(made)
    assert found.source == f"range {ADAM}"
    assert (found.end_ns - found.start_ns).tolist() == [100 * MS] * 8 * marks


TWO_OPTIMIZERS = [("gemm", 8, ADAM), ("conv", 15, ADAM)]


@pytest.mark.parametrize("parts", [ONE, [("gemm", 12, ADAM), ("conv", 20, SGD)], TWO_OPTIMIZERS])
def test_marks_of_one_step_each_are_the_steps_whatever_optimizers_it_has(parts: list[Part]) -> None:
    made, ends = loop([100 * MS] * 6, parts)
    for number, end in enumerate(ends):
        made.step(end - 100 * MS, end, number)
    assert steps_of(made).source == "ProfilerStep"


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


def looped(lengths: int = 8) -> tuple[Made, list[int]]:
    """Steps of 100 ms, and the ends of their optimizers."""
    return loop([100 * MS] * lengths, ONE)


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


def never_recurring() -> Made:
    made, at = Made(), 0
    for i in range(9):
        for j in range(20):
            made.event(at + j * MS, at + j * MS + MS // 2, f"kernel_{i}_{j}")
        made.range(at + 20 * MS, at + 21 * MS, ADAM)
        at += 25 * MS
    return made


def behind_the_host() -> Made:
    """The device is, by more and more."""
    made = Made()
    for i in range(8):
        for j in range(10):
            launch, start = i * 10 * MS + j * MS // 2, i * 100 * MS + j * 10 * MS
            made.event(start + MS, start + 9 * MS, f"k{j}", launch_ns=launch)
        made.range(i * 10 * MS + 8 * MS, i * 10 * MS + 9 * MS, ADAM)
    return made


def numbered(count: int) -> Made:
    """A loop of eight steps in so many ranges with a number."""
    made, ends = looped()
    for i in range(count):
        begin, end = (10 + 800 * i // count) * MS, (10 + 800 * (i + 1) // count) * MS
        made.range(begin, min(end, ends[-1]), f"step {i}")
    return made


ENDS = looped()[1]
SOURCES: list[tuple[Made, str | None, Any]] = [
    (looped()[0], f"range {ADAM}", [100 * MS] * 7),  # from one optimizer to the next
    # of marks, only if each has several optimizer steps
    (looped()[0].step(10 * MS, ENDS[3], 0).step(ENDS[3], ENDS[7], 1), f"range {ADAM}", [100 * MS] * 8),
    (looped()[0].step(10 * MS, ENDS[6], 0).step(ENDS[6], ENDS[7], 1), "ProfilerStep", [700 * MS, 100 * MS]),
    (numbered(8), "range step", [100 * MS] * 8),
    (numbered(1), None, [100 * MS] * 8),  # one range around the loop is no step
    (looped()[0].step(ENDS[2], ENDS[6], 0), None, [100 * MS] * 4),  # optimizers outside of the mark
    (never_recurring(), "none", None),
    # a recording that is mostly something else, and an optimizer that steps once, tell no steps
    (looped(5)[0].event(2000 * MS, 2001 * MS, "later"), "", None),
    (looped()[0].range(5 * MS, 6 * MS, SGD), "", None),
]


@pytest.mark.parametrize(("made", "source", "durations_ns"), SOURCES)
def test_what_tells_the_steps(made: Made, source: str | None, durations_ns: Any) -> None:
    found = steps_of(made)
    assert source is None or (found.source == source if source else not found.source.startswith("range"))
    assert durations_ns is None or found.durations_ns.tolist() == durations_ns


def test_the_device_may_be_behind_the_host() -> None:
    found = steps_of(behind_the_host())
    assert found.on_device and set(found.durations_ns.tolist()[:-1]) == {100 * MS}
