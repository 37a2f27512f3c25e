"""Which trainings bench_diagnosis.py makes: every fault in every size and place, and changes of an option.

Each case is a pair of runs, one after the other: before and after the fault is removed, or the option is changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from diagnosis_runs import Case

SEVERITIES = (0.15, 0.3, 0.6)  # of a healthy step
STEP_MS = {1: 45, 2: 210, 3: 420}  # of a healthy step on the machine of diagnosis.md; sizes the faults only
TIMED = (
    "data-stall,ms={ms}{where}",
    "host-stall,ms={ms},in=forward{where}",
    "host-stall,ms={ms},in=backward{where}",
    "host-stall,ms={ms},in=optimizer{where}",
    "pause,ms={ms}{where}",
)
WHERE = ("", ",rank=1", ",rank=0,every=3")
OTHERS = {
    1: (
        "slow-link,ms=20,rank=1",
        "long-sequences,rank=1",
        "pinned-together",
        "noisy-neighbour,procs=2,rank=1",
        "gc,objects=100,every=2",
        "checkpoint,rank=0",
        "small-buckets,kb=4",
        "tiny-kernels",
    ),
    2: (
        "slow-link,ms=2,rank=1",
        "long-sequences,rank=0",
        "pinned-together",
        "gc,objects=100",
        "checkpoint,rank=0",
        "tiny-kernels",
    ),
    3: ("slow-link,ms=10,rank=1", "pinned-together", "gc,objects=100", "checkpoint,rank=0", "uneven-stages,layers=1"),
}
CHANGES = {  # what-if, and the options before and after
    1: (
        ("gas-x2", ("--micro-batch-size", "2"), ("--micro-batch-size", "2", "--gradient-accumulation-steps", "2")),
        ("gas-x4", ("--micro-batch-size", "1"), ("--micro-batch-size", "1", "--gradient-accumulation-steps", "4")),
        ("micro-batch-x2", ("--micro-batch-size", "2"), ("--micro-batch-size", "4")),
        ("micro-batch-x2", ("--micro-batch-size", "4"), ("--micro-batch-size", "8")),
        ("one-bucket", ("--fault", "small-buckets,kb=4"), ()),
    ),
    2: (("micro-batch-x2", ("--micro-batch-size", "2"), ("--micro-batch-size", "4")),),
    3: (
        ("micro-batches-x2", ("--global-batch-size", "8"), ("--global-batch-size", "16")),
        ("micro-batches-x2", ("--global-batch-size", "16"), ("--global-batch-size", "32")),
    ),
}
Pair = tuple[Case, Case]


def faults(exercise: int) -> Iterator[str]:
    """Every fault of an exercise in every size; what hits every third step is three times as large."""
    for severity in SEVERITIES:
        for where in WHERE:
            factor = 3 if "every" in where else 1
            size = round(severity * factor * STEP_MS[exercise])
            yield from (text.format(ms=size, where=where) for text in TIMED)
            if "rank" in where:
                yield f"extra-compute,ms={size}{where}"
    yield from OTHERS[exercise]


def pairs(exercises: Sequence[int], ranks: int, seed: int) -> list[Pair]:
    """All pairs with one seed, shuffled, so that a part of them is a sample of all."""
    found = []
    for exercise in exercises:
        for number, fault in enumerate(faults(exercise)):
            name = f"{number:03d}"
            found.append((Case(exercise, ranks, seed, name, fault), Case(exercise, ranks, seed, name, None)))
        for number, (what_if, before, after) in enumerate(CHANGES[exercise]):
            name = f"{what_if}.{number}"
            found.append(
                (
                    Case(exercise, ranks, seed, name, None, before),
                    Case(exercise, ranks, seed, name, None, after or ("--seed", str(seed))),
                )
            )
    random.Random(seed).shuffle(found)
    return found
