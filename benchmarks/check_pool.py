"""The pool of trainings that bench_check.py judges: healthy ones and slower ones in turn, by the real launcher.

A round is four trainings: healthy, +5 %, +10 %, healthy again; every other round in the opposite order. So two rounds
have each pair of kinds in the order A B B A. What makes a training slower is more computing in each step, for that
share of the healthy step as the last healthy trainings measured it. (A sleep would not do: on a busy machine another
program takes the core meanwhile, and the step loses more than the sleep.) Ranks are forked from a process that has
imported PyTorch. One line per training is kept in OUT/CONDITION/runs.jsonl.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.analysis.metric_values import step_durations_ns
from harness.analysis.summary import Summary
from harness.measure.run_files import read_training
from tests.exercises.launching import train

KINDS = {"healthy": 0.0, "+5 %": 0.05, "+10 %": 0.10, "healthy again": 0.0}
SKIPPED, WARM_UP, STEPS = 6, 1, 40
CALIBRATION = 4  # trainings before the first round
REMEMBERED = 8  # healthy trainings whose median is the healthy step
_NEIGHBOUR = """
import random, time
chance = random.Random(1)
while True:
    time.sleep(chance.expovariate(1 / 6))
    end = time.monotonic() + chance.expovariate(1 / 3)
    while time.monotonic() < end:
        pass
"""


@dataclass(frozen=True)
class Trained:
    """One training. round: -1 before the first. injected_ns: what it computed more per step, as it recorded."""

    round: int
    kind: str
    unix_ns: int
    steps_ns: tuple[float, ...]
    injected_ns: float

    @property
    def median_ns(self) -> float:
        """What a check judges."""
        return median(self.steps_ns)


def kept(folder: Path) -> list[Trained]:
    """The trainings of a condition so far, in the order in which they were made."""
    path = folder / "runs.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [Trained(**{**line, "steps_ns": tuple(line["steps_ns"])}) for line in map(json.loads, lines)]


def make(folder: Path, until: float, ranks: int) -> None:
    """Make rounds until `time.monotonic()` is past `until`; a round that was begun is ended first."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = kept(folder)
    while len(pool) < CALIBRATION:
        pool.append(_keep(folder, _train(-1, "healthy", 0, ranks)))
    while time.monotonic() < until:
        number, missing = _next(pool)
        for kind in missing:
            healthy = [each.median_ns for each in pool if not KINDS[each.kind]][-REMEMBERED:]
            pool.append(_keep(folder, _train(number, kind, KINDS[kind] * median(healthy), ranks)))
            print(f"round {number}, {kind}: {pool[-1].median_ns / 1e6:.2f} ms", flush=True)


def _next(pool: list[Trained]) -> tuple[int, list[str]]:
    """The round to go on with, and its trainings that are missing."""
    last = max(each.round for each in pool)
    for number in (last, last + 1):
        order = list(KINDS) if number % 2 == 0 else list(reversed(KINDS))
        there = {each.kind for each in pool if each.round == number}
        missing = [kind for kind in order if kind not in there]
        if number >= 0 and missing:
            return number, missing
    return last + 1, list(KINDS)


def _keep(folder: Path, done: Trained) -> Trained:
    with (folder / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(done)) + "\n")
    return done


def _train(number: int, kind: str, more_ns: float, ranks: int) -> Trained:
    """Raises RuntimeError: the training failed."""
    place = Path(mkdtemp(prefix="bench-check-"))
    window = ("--skip", SKIPPED, "--wait", 0, "--warmup", WARM_UP, "--active", STEPS)
    fault = ("--fault", f"extra-compute,ms={more_ns / 1e6:.4f}") if more_ns else ()
    options = map(str, ("--seed", 1, *window, "--profiler", "none", *fault))
    began = time.time_ns()
    done = train("exercise_1_DDP/train.py", place / "run", *options, model="tiny-llama", processes=ranks)
    if done.code:
        raise RuntimeError(f"a training failed:\n{done.stderr[-2000:]}")
    training, _ = read_training(sorted((place / "run" / "metrics").glob("rank*.jsonl")))
    steps = step_durations_ns(Summary(training=training))
    injected = _injected(place / "run" / "faults")
    shutil.rmtree(place)
    return Trained(number, kind, began, tuple(steps), injected)


def _injected(folder: Path) -> float:
    """Per counted step, the mean over ranks."""
    first = SKIPPED + WARM_UP
    lines = [json.loads(line) for path in folder.glob("rank*.jsonl") for line in path.read_text().splitlines()]
    times = [line["ns"] for line in lines if first <= line["step"] < first + STEPS]
    return fmean(times) if times else 0.0


@contextmanager
def neighbour() -> Iterator[None]:
    """Another program that uses one core now and then: for three seconds in the mean, after six in the mean."""
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()
