"""Which simulated jobs are made: healthy ones, each fault alone, and faults in pairs; drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from .faults import FAULTS, FaultKind, Planted
from .program import MS, US
from .simulate import run_step_ns
from .training import Training

TOOLS = ("kineto", "nsys")
_RANKS = (2, 2, 4, 4, 8, 16)
_EASY = (
    *("host-work", "host-work-sometimes", "late-rank", "allocator", "collector", "pageable-copies"),
    *("slower-device", "more-work", "extra-collective", "checkpoint", "offload", "fp32", "no-overlap"),
    *("slow-loader", "late-loads"),
)  # of which two can be planted
SOMETIMES = (
    "late-loads",
    "late-worker",
    "host-work-sometimes",
    "collector",
    "checkpoint",
    "evaluation",
    "evaluation-of-all",
)
STEPS = 13  # one more than whole periods of 2, 3 and 4: the first one does not count

# faults that a report tells as one finding, so that two of them cannot be told apart
_AS_HOST_STALLS = ("host-work", "host-work-sometimes", "late-rank", "checkpoint", "collector")
_SAME = ({"extra-collective", "no-overlap"}, {"slow-loader", "late-loads"})
_AS_COPIES = ("checkpoint", "offload", "pageable-copies", "blocking-copy")


@dataclass(frozen=True)
class Case:
    """One job: a training without faults, and what is planted in it, one after the other."""

    name: str
    tool: str
    bound: str
    healthy: Training
    planted: tuple[Planted, ...] = ()

    @property
    def training(self) -> Training:
        """With all that is planted."""
        return self.planted[-1].training if self.planted else self.healthy


def healthy(rng: random.Random, kind: str, bound: str, fewest: int = 1) -> Training:
    """A training without faults: bound by its device (the host is ahead), or by its host (the device waits)."""
    ranks = 1 if kind == "alone" else rng.choice([n for n in _RANKS if n >= fewest])
    layers = rng.choice((6, 8, 12)) if bound == "device" else rng.choice((12, 20))
    stages = 1
    micro_batches = 1
    if kind == "pipeline":
        stages = rng.choice((2, 4))
        ranks = stages * rng.choice((1, 2) if stages == 4 else (1, 2, 4))
        layers, micro_batches = rng.choice((2, 3)), 4 * stages
    kernel_ns = rng.choice((120, 200, 400)) * US if bound == "device" else rng.choice((6, 10)) * US
    t = Training(
        kind=kind, ranks=ranks, stages=stages, layers=layers, micro_batches=micro_batches, kernel_ns=kernel_ns,
        steps=rng.choice((13, 17)), python_ns=rng.choice((4, 8, 14)) * US, stacks=rng.random() < 0.5,
        ranges=rng.random() < 0.7, item_every=rng.choice((0, 1, 4)), seed=rng.randrange(1 << 20),
        fetch_ns=rng.choice((100, 500, 1400)) * US if bound == "device" else 100 * US,
    )  # fmt: skip
    if bound == "host":
        t = replace(t, python_ns=t.python_ns + 6 * US, load_ns=MS // 4)
    # gradients travel behind the backward pass
    layer_ns = 9 * t.kernel_ns
    return replace(t, layer_bytes=max(int(0.25 * layer_ns * t.gb_per_s / 2), 1 << 16), load_ns=min(t.load_ns, layer_ns))


class Request(NamedTuple):
    """Which job to make; it can be sent to another process. kind: a fault's name, "pair" or "healthy"."""

    seed: int
    kind: str
    number: int

    def case(self) -> Case:
        """The job."""
        rng = random.Random(f"{self.seed} {self.kind} {self.number}")
        if self.kind == "pair":
            return _pair(rng, self.number)
        if self.kind == "healthy":
            return _healthy(rng, self.number)
        return _single(rng, self.kind, FAULTS[self.kind], self.number)


def requests(seed: int, each: int, pairs: int, healthy_jobs: int) -> list[Request]:
    """`each` jobs of every fault, `pairs` with two, and healthy ones."""
    counts = {**dict.fromkeys(FAULTS, each), "pair": pairs, "healthy": healthy_jobs}
    return [Request(seed, kind, number) for kind, count in counts.items() for number in range(count)]


def _healthy(rng: random.Random, number: int) -> Case:
    bound = ("device", "host")[number % 2]
    kind = ("alone", "ddp", "sharded", "pipeline" if bound == "device" else "ddp")[number // 2 % 4]
    return Case(f"healthy-{number}", TOOLS[number % 3 == 2], bound, healthy(rng, kind, bound))


def _single(rng: random.Random, name: str, kind: FaultKind, number: int) -> Case:
    bound = kind.bound[number % len(kind.bound)]
    base = healthy(rng, rng.choice(kind.kinds), bound, kind.ranks)
    tool = TOOLS[number // len(kind.bound) % 2]
    size = round(rng.uniform(0.15, 0.6) * run_step_ns(base))
    if name in SOMETIMES:
        base = replace(base, steps=STEPS, item_every=rng.choice((0, 1)), ranges=True)
    return Case(f"{name}-{number}", tool, bound, base, (kind.apply(base, rng, size),))


def _pair(rng: random.Random, number: int) -> Case:
    first, second = rng.sample(_EASY, 2)
    one_cause = all(name in _AS_HOST_STALLS for name in (first, second)) or {first, second} <= set(_AS_COPIES)
    shared = [k for k in FAULTS[first].kinds if k in FAULTS[second].kinds]
    bounds = [b for b in FAULTS[first].bound if b in FAULTS[second].bound]
    if one_cause or not shared or not bounds or {first, second} in _SAME:
        return _pair(rng, number)
    bound = rng.choice(bounds)
    base = healthy(rng, rng.choice(shared), bound, max(FAULTS[first].ranks, FAULTS[second].ranks))
    base = replace(base, steps=STEPS, item_every=rng.choice((0, 1)))
    step = run_step_ns(base)
    one = FAULTS[first].apply(base, rng, round(rng.uniform(0.3, 0.6) * step))
    two = FAULTS[second].apply(one.training, rng, round(rng.uniform(0.15, 0.25) * step))
    return Case(f"pair-{number}-{first}+{second}", TOOLS[number % 2], bound, base, (one, two))
