"""Which jobs are made that are recorded from their start; drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from .program import MS, US
from .simulate import run_step_ns
from .training import Cold, Start, Training

AROUND = "distributed_training"  # a range around everything, as programs of others have it
_CALLS = ("cudaStreamCreateWithFlags", "cudaEventCreateWithFlags", "cuLibraryLoadData", "cudaFree", "cudaMalloc")


class StartCase(NamedTuple):
    """A job with a start; `without` is the same job without what is to be told. told: first-use, before, or nothing."""

    name: str
    tool: str
    training: Training
    without: Training
    told: str


class StartRequest(NamedTuple):
    """Which job to make. kind: a name in KINDS."""

    seed: int
    kind: str
    number: int

    def case(self) -> StartCase:
        """The job."""
        rng = random.Random(f"{self.seed} {self.kind} {self.number}")
        t = Training(
            kind=rng.choice(("alone", "ddp", "sharded")), layers=rng.choice((6, 8)), steps=rng.choice((6, 9)),
            kernel_ns=rng.choice((10, 150)) * US, python_ns=rng.choice((8, 14)) * US, stacks=rng.random() < 0.5,
            item_every=rng.choice((0, 1)), seed=rng.randrange(1 << 20), load_ns=MS // 5, layer_bytes=4 << 20,
        )  # fmt: skip
        t = replace(t, ranks=1 if t.kind == "alone" else rng.choice((2, 4)))
        tool = ("kineto", "nsys")[self.number % 2]
        return KINDS[self.kind](f"{self.kind}-{self.number}", tool, t, rng)


def _whole_ns(t: Training) -> int:
    return t.steps * run_step_ns(t)


def _parts(t: Training, rng: random.Random) -> Start:
    whole = _whole_ns(t)

    def some() -> int:
        return round(whole * rng.uniform(0.1, 0.6)) * rng.choice((0, 1, 1))

    return Start(
        imports_ns=some(), context_ns=some(), meeting_ns=some() if t.ranks > 1 else 0, model_ns=some(),
        model_bytes=round(3 * whole * rng.uniform(0.2, 0.8)), pageable=rng.random() < 0.7, compile_ns=some(),
        capture_ns=some() // 4,
    )  # fmt: skip


def _before(name: str, tool: str, t: Training, rng: random.Random, *, marked: bool) -> StartCase:
    without = replace(t, marked=marked, around=AROUND)
    return StartCase(name, tool, replace(without, start=_parts(t, rng)), without, "before")


def _cold(name: str, tool: str, t: Training, rng: random.Random, *, marked: bool) -> StartCase:
    """The first pass takes several times as long as the others together, or half of them."""
    whole = round(_whole_ns(t) * rng.uniform(0.3, 3))
    names = rng.sample(_CALLS, rng.choice((2, 3, 5)))
    weights = [rng.uniform(0.2, 1) for _ in names]
    calls = tuple((n, max(round(whole * w / sum(weights)), 2 * MS)) for n, w in zip(names, weights, strict=True))
    launch_ns = rng.choice((0, round(whole / 20)))
    cold = Start(cold=Cold(calls, max(launch_ns, 2 * MS) if launch_ns else 0))
    without = replace(t, marked=marked, start=Start(cold=Cold(tuple((n, 5 * US) for n, _ in calls))))
    return StartCase(name, tool, replace(without, start=cold), without, "nothing" if marked else "first-use")


def _allocates(name: str, tool: str, t: Training, rng: random.Random) -> StartCase:
    """Memory is allocated in every layer of every step, and nothing marks a step: no first use."""
    without = replace(t, marked=False)
    return StartCase(name, tool, replace(without, allocations_ns=rng.choice((1, 2, 4)) * MS), without, "allocation")


KINDS: dict[str, Callable[[str, str, Training, random.Random], StartCase]] = {
    "before-marked": partial(_before, marked=True),
    "before-unmarked": partial(_before, marked=False),
    "cold-unmarked": partial(_cold, marked=False),
    "cold-marked": partial(_cold, marked=True),
    "allocates-unmarked": _allocates,
}


def start_requests(seed: int, each: int) -> list[StartRequest]:
    """`each` jobs of every kind."""
    return [StartRequest(seed, kind, number) for kind in KINDS for number in range(each)]
