"""How near the observer's times of steps and phases are to the trainings' own: unchanged trainings with a stopwatch.

    python benchmarks/bench_phases.py [--only NAME…] [--times 3]

Of each training, part and rank the median over the steps of the difference, in per cent of a step; of several runs the
best, as another program may run between the two clocks' readings. Steps in which the profiler is switched on or off are
left out: the training's own stopwatch counts that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_trainings import TRAININGS

from tests.own.observed_trainings import WINDOW, Ended, start

STEPS, GOAL = 14, 0.02
PARTS = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
_FIRST = WINDOW["skip"] + WINDOW["wait"]
_START = _FIRST + WINDOW["warmup"]
_END = _START + WINDOW["active"]
SWITCHING = {0, _FIRST - 1, _FIRST, _START - 1, _START, _END - 1, _END}  # the first step starts everything


def apart(ended: Ended, rank: int) -> dict[str, float]:
    """How far each part is from the training's own measurement, in steps."""
    truth, lines = ended.truth(rank), ended.steps(rank)
    counted = [step for step in range(STEPS) if step not in SWITCHING]
    ends = truth["step_end_unix_ns"]
    whole = {step: ends[step] - ends[step - 1] for step in counted}
    off = {
        part: [lines[step][part] - truth[part][step] for step in counted] for part in PARTS if truth[part] is not None
    }
    off["step_ns"] = [lines[step]["step_ns"] - whole[step] for step in counted]
    return {part: median(each) / median(whole.values()) for part, each in off.items()}


def rows(names: list[str], times: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Of each training the run whose largest difference is smallest, as `part of rank R`."""
    for name in names:
        found = []
        for _ in range(times):
            with tempfile.TemporaryDirectory() as folder:
                ended = start(TRAININGS[name], Path(folder) / "run", ["--steps", str(STEPS)], asked={}).ended()
                ranks = {rank: apart(ended, rank) for rank in ended.ranks}
            found.append({f"{part} of rank {rank}": off for rank, own in ranks.items() for part, off in own.items()})
        yield name, min(found, key=lambda each: max(map(abs, each.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TRAININGS), default=list(TRAININGS))
    parser.add_argument("--times", type=int, default=3, help="runs of each training")
    asked = parser.parse_args()
    print("| training | largest difference | of | within 2 % of a step |\n|---|---|---|---|")
    for name, found in rows(asked.only, asked.times):
        part, off = max(found.items(), key=lambda each: abs(each[1]))
        print(f"| {name} | {off:+.2%} | {part} | {'yes' if abs(off) <= GOAL else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
