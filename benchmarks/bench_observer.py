"""What the observer costs a training that it does not record: a step, and the time to the first step.

    python benchmarks/bench_observer.py [--pairs 30] [--ranks 1 2] [--batch-sizes 128 512]
        [--steps 200] [--word] [--alone] [--out FILE]

A pair is the same training with and without the observer; no window is ever reached. They start one after the other.
Then they take turns of half a second in the order A B B A, one stopped by a signal while the other trains, so that a
machine that is faster at some times favours neither. The training times itself, so that what the observer does between
two steps counts; a step in which it was stopped, and the next one, are left out. Both keep memory that they have freed.
A run's number is the median of its steps on its slowest rank; the table has the median over the pairs with a bootstrap
interval. With --word the observer is that of `observe --no-report --`, so the program that stays, its guard and the
monitor take their turns too. With --alone the training is one process without a loader's worker, which leaves a core
free where there are two.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_trainings import KEEP_MEMORY, TRAININGS

from tests.own.observed_trainings import start

FIRST = 5  # steps that are left out: allocators and workers start
TURN_S = 0.5
NEVER = {"skip": 10**9, "wait": 0, "warmup": 1, "active": 1}
RESAMPLED = 10_000
MOST_OF_A_STEP, MOST_AT_START_S = 0.01, 0.3  # what the observer may cost
WITHOUT, WITH = "without", "with"
WORD = (sys.executable, "-I", "-m", "harness", "observe", "--no-report", "--")


@dataclass(frozen=True)
class PairsRequest:
    """The command line. word: `observe --` in place of the observer alone. alone: one process without a loader's
    worker."""

    pairs: int
    steps: int
    word: bool
    alone: bool


@dataclass(frozen=True)
class Pair:
    """Numbers of both trainings. step_ns: the median step; start_ns: from the launch to the end of the first step."""

    ranks: int
    batch_size: int
    step_ns: dict[str, float]
    start_ns: dict[str, int]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


class Arm:
    """One of the two trainings, while it runs."""

    def __init__(self, name: str, asked: PairsRequest, ranks: int, options: Sequence[str], folder: Path) -> None:
        training = TRAININGS["one_process"] if asked.alone else TRAININGS["plain_ddp"].with_ranks(ranks)
        self._is_observed, self._by_word = name == WITH, asked.word and name == WITH
        settings = {"profiler": "none", "window": NEVER} if self._is_observed and not self._by_word else None
        words = WORD if self._by_word else ()
        self._begin_ns = time.time_ns()
        self._running = start(training, folder, options, asked=settings, words=words)
        self._stopped: list[tuple[int, int]] = []
        self._stopped_ns = 0
        self._groups: list[int] = []

    def wait_for_the_first_step(self) -> None:
        """Of every rank."""
        ranks, folder = range(self._running.training.ranks), self._running.folder
        while not all((folder / f"truth.rank{rank}.begun").exists() for rank in ranks):
            assert self.runs, self._running.log
            time.sleep(0.005)
        self._groups = self._process_groups()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._running.process.poll() is None

    def stop(self) -> None:
        """All its processes."""
        self._stopped_ns = time.time_ns()
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """All its processes."""
        self._signal(signal.SIGCONT)
        self._stopped.append((self._stopped_ns, time.time_ns()))

    def _signal(self, number: signal.Signals) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def _process_groups(self) -> list[int]:
        """Those of its session: torchrun makes each rank the leader of one of its own, what stays beside a word too."""
        session = str(self._running.process.pid)
        asked = ["ps", "-e", "-o", "pgid=,sid="]
        lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        return sorted({int(group) for group, own in map(str.split, lines) if own == session})

    def numbers(self) -> tuple[float, int]:
        """(the median step, the time to the first one), in ns, once it has ended."""
        done = self._running.ended()
        ends = [done.truth(rank)["step_end_unix_ns"] for rank in done.ranks]
        if self._is_observed:
            if self._by_word:
                (run,) = (done.folder / "runs/own/profiler").glob("[!.]*")
                counted = replace(done, folder=run)
            else:
                counted = done
            assert all(len(counted.steps(rank)) == len(ends[rank]) for rank in done.ranks), "the observer was off"
        step_ns = max(median(self._undisturbed(own)) for own in ends)
        return step_ns, max(own[0] for own in ends) - self._begin_ns

    def _undisturbed(self, ends: Sequence[int]) -> list[int]:
        """The steps before and in which it was not stopped."""
        return [
            end - begin
            for before, begin, end in zip(ends[FIRST:], ends[FIRST + 1 :], ends[FIRST + 2 :], strict=False)
            if not any(stopped < end and continued > before for stopped, continued in self._stopped)
        ]


def measure(ranks: int, batch_size: int, pair: int, asked: PairsRequest) -> Pair:
    """Train both; every second pair begins with the other one."""
    options = ["--steps", str(asked.steps), *([] if asked.alone else ["--batch-size", str(batch_size)])]
    order = (WITHOUT, WITH) if pair % 2 == 0 else (WITH, WITHOUT)
    with tempfile.TemporaryDirectory() as folder:
        arms = {}
        for name in order:
            arms[name] = Arm(name, asked, ranks, options, Path(folder, name))
            arms[name].wait_for_the_first_step()
            arms[name].stop()
        turns = cycle((*order, *reversed(order)))
        while all(arm.runs for arm in arms.values()):
            arm = arms[next(turns)]
            arm.go_on()
            time.sleep(TURN_S)
            arm.stop()
        for arm in arms.values():
            arm.go_on()
        numbers = {name: arm.numbers() for name, arm in arms.items()}
    return Pair(
        ranks,
        batch_size,
        {name: step for name, (step, _) in numbers.items()},
        {name: start for name, (_, start) in numbers.items()},
    )


def measure_pairs(ranks: int, batch_size: int, asked: PairsRequest) -> list[Pair]:
    """All pairs of one size."""
    measured = []
    for number in range(asked.pairs):
        pair = measure(ranks, batch_size, number, asked)
        measured.append(pair)
        print(
            f"{ranks} ranks, pair {number + 1}: step {pair.step_ns[WITHOUT] / 1e6:.2f} and "
            f"{pair.step_ns[WITH] / 1e6:.2f} ms, first step after {pair.start_ns[WITHOUT] / 1e9:.2f} and "
            f"{pair.start_ns[WITH] / 1e9:.2f} s",
            flush=True,
        )
    return measured


def estimate(values: Sequence[float]) -> Estimate:
    """Their median, and where it lies if the values are drawn again."""
    dice = random.Random(0)
    medians = sorted(median(dice.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return Estimate(median(values), medians[round(0.025 * RESAMPLED)], medians[round(0.975 * RESAMPLED) - 1])


def ratios(of_pairs: Sequence[float]) -> list[float]:
    """By how much more with the observer: of two pairs at a time, because the one that is started second is faster by
    several percent, and they begin in turns."""
    both = zip(of_pairs[::2], of_pairs[1::2], strict=False)
    return [math.sqrt(first * second) - 1 for first, second in both] or [of_pairs[0] - 1]


def row(pairs: Sequence[Pair]) -> str:
    """The table's row for one size."""
    ratio = estimate(ratios([pair.step_ns[WITH] / pair.step_ns[WITHOUT] for pair in pairs]))
    added_us = estimate([(pair.step_ns[WITH] - pair.step_ns[WITHOUT]) / 1e3 for pair in pairs])
    start_s = estimate([(pair.start_ns[WITH] - pair.start_ns[WITHOUT]) / 1e9 for pair in pairs])
    step_ms = median(pair.step_ns[WITHOUT] for pair in pairs) / 1e6
    return (
        f"| {pairs[0].ranks} | {pairs[0].batch_size} | {len(pairs)} | {step_ms:.1f} "
        f"| {added_us.value:+.0f} [{added_us.low:+.0f}, {added_us.high:+.0f}] | {ratio.value:+.2%} "
        f"[{ratio.low:+.2%}, {ratio.high:+.2%}] | {verdict(ratio.value, MOST_OF_A_STEP)} "
        f"| {start_s.value:+.2f} [{start_s.low:+.2f}, {start_s.high:+.2f}] "
        f"| {verdict(start_s.value, MOST_AT_START_S)} |"
    )


def verdict(value: float, most: float) -> str:
    """Whether a cost is allowed."""
    return "yes" if value < most else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--word", action="store_true", help="with `observe --` in place of the observer alone")
    parser.add_argument("--alone", action="store_true", help="a training of one process, which needs one core")
    parser.add_argument("--out", type=Path, help="every pair as JSON")
    asked = parser.parse_args()
    os.environ.update(KEEP_MEMORY)
    own = PairsRequest(asked.pairs, asked.steps, asked.word, asked.alone)
    sizes = [(1, 64)] if asked.alone else [(ranks, size) for ranks in asked.ranks for size in asked.batch_sizes]
    measured = [measure_pairs(ranks, batch_size, own) for ranks, batch_size in sizes]
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(pair) for own in measured for pair in own], indent=1), encoding="utf-8")
    print(
        "| ranks | batch | pairs | step, ms | added, µs | of a step | < 1 % | to the first step, s | < 0.3 s |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for own_pairs in measured:
        print(row(own_pairs))


if __name__ == "__main__":
    main()
