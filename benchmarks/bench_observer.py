"""What the observer costs a training that it does not record: a step, and the time to the first step.

    python benchmarks/bench_observer.py [--pairs 30] [--ranks 1 2] [--steps 60] [--first] [--out FILE]

The same training with and without the observer beside it, in the order A B B A; no window is ever reached. The training
times itself, so that what the observer does between two steps counts. A run's number is the median of its steps on its
slowest rank. The medians of the runs are compared, with a bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_trainings import TRAININGS

from tests.own.observed_trainings import run

FIRST = 10  # steps that are left out: allocators and workers start
NEVER = {"skip": 10**9, "wait": 0, "warmup": 1, "active": 1}
RESAMPLED = 10_000
MOST_OF_A_STEP, MOST_AT_START_S = 0.01, 0.3  # what the observer may cost
WITHOUT, WITH = "without", "with"


@dataclass(frozen=True)
class Run:
    """One training. step_ns: its median step; start_ns: from its launch to the end of its first step."""

    ranks: int
    pair: int
    arm: str
    step_ns: float
    start_ns: int


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def measure(ranks: int, pair: int, arm: str, steps: int, first: bool) -> Run:
    """Train once."""
    training = TRAININGS["plain_ddp"].with_ranks(ranks)
    asked = {"profiler": "none", "window": NEVER} if arm == WITH else None
    with tempfile.TemporaryDirectory() as folder:
        begin_ns = time.time_ns()
        ended = run(training, Path(folder), ["--steps", str(steps)], asked=asked, first=first)
        ends = [ended.truth(rank)["step_end_unix_ns"] for rank in ended.ranks]
        if asked is not None:
            assert all(len(ended.steps(rank)) == steps for rank in ended.ranks), "the observer was off"
    slowest = max(median(b - a for a, b in zip(own[FIRST:], own[FIRST + 1 :], strict=False)) for own in ends)
    return Run(ranks, pair, arm, slowest, max(own[0] for own in ends) - begin_ns)


def measure_pairs(ranks: int, pairs: int, steps: int, first: bool) -> list[Run]:
    """All pairs, every second one in reverse order."""
    runs = []
    for pair in range(pairs):
        for arm in (WITHOUT, WITH) if pair % 2 == 0 else (WITH, WITHOUT):
            runs.append(measure(ranks, pair, arm, steps, first))
        before, after = sorted(runs[-2:], key=lambda run: run.arm == WITH)
        print(
            f"{ranks} ranks, pair {pair + 1}: step {before.step_ns / 1e6:.2f} and {after.step_ns / 1e6:.2f} ms, "
            f"first step after {before.start_ns / 1e9:.2f} and {after.start_ns / 1e9:.2f} s",
            flush=True,
        )
    return runs


def estimate(runs: Sequence[Run], number: Callable[[Sequence[Run], Sequence[Run]], float]) -> Estimate:
    """A number of all runs without and all runs with the observer, and where it lies if the pairs are drawn again."""
    pairs = sorted({run.pair for run in runs})
    by_arm = {(run.pair, run.arm): run for run in runs}
    dice = random.Random(0)

    def of(drawn: Sequence[int]) -> float:
        return number([by_arm[pair, WITHOUT] for pair in drawn], [by_arm[pair, WITH] for pair in drawn])

    values = sorted(of(dice.choices(pairs, k=len(pairs))) for _ in range(RESAMPLED))
    return Estimate(of(pairs), values[round(0.025 * RESAMPLED)], values[round(0.975 * RESAMPLED) - 1])


def step_ratio(without: Sequence[Run], with_: Sequence[Run]) -> float:
    """Of the medians of the runs."""
    return median(run.step_ns for run in with_) / median(run.step_ns for run in without)


def start_difference_s(without: Sequence[Run], with_: Sequence[Run]) -> float:
    """The median over the pairs."""
    return median((b.start_ns - a.start_ns) / 1e9 for a, b in zip(without, with_, strict=True))


def row(runs: Sequence[Run]) -> str:
    """The table's row for one number of ranks."""
    ratio, start = estimate(runs, step_ratio), estimate(runs, start_difference_s)
    step_ms = median(run.step_ns for run in runs if run.arm == WITHOUT) / 1e6
    return (
        f"| {runs[0].ranks} | {len(runs) // 2} | {step_ms:.1f} | {ratio.value - 1:+.2%} "
        f"[{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}] | {verdict(ratio.value - 1, MOST_OF_A_STEP)} "
        f"| {start.value:+.2f} [{start.low:+.2f}, {start.high:+.2f}] | {verdict(start.value, MOST_AT_START_S)} |"
    )


def verdict(value: float, most: float) -> str:
    """Whether a cost is allowed."""
    return "yes" if value < most else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--first", action="store_true", help="with the highest priority, for a busy machine")
    parser.add_argument("--out", type=Path, help="every run as JSON")
    asked = parser.parse_args()
    runs = [measure_pairs(ranks, asked.pairs, asked.steps, asked.first) for ranks in asked.ranks]
    if asked.out is not None:
        asked.out.write_text(
            json.dumps([asdict(run) for own in runs for run in own], indent=1), encoding="utf-8"
        )
    print(
        "| ranks | pairs | step, ms | observer, of a step | < 1 % | to the first step, s | < 0.3 s |\n"
        "|---|---|---|---|---|---|---|"
    )
    for own in runs:
        print(row(own))


if __name__ == "__main__":
    main()
