"""Are the plan's bytes right? Each estimate beside what the real objects allocate.

    python benchmarks/bench_memory.py [--only tiny|real]

`tiny` and `real` build a rank's training as the exercises do (memory_of_training.py): tiny models with real memory,
Mistral-7B with storages that have no memory. Prints the tables of docs/theory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.cli.command import read_launch
from harness.cli.launch.launch import request_of
from harness.launch.submit import prepare
from harness.plan.memory import Workload, of_stage, peak_memory, workload_of
from harness.theory.peak import Peak

ROOT = Path(__file__).parents[1]
TINY = "--model tiny-mistral --micro-batch-size 2 --seq-length 256"
REAL = "--model mistral-7b --random-weights --micro-batch-size 1 --seq-length 2048"
MODELS = {"tiny": TINY, "real": REAL}
MIXED, AGAIN = "--mixed-precision", "--mixed-precision --activation-checkpointing"
CASES = {
    TINY: [
        *(f"-e 1 -g 4 {more}" for more in ("", MIXED, AGAIN, "--gradient-accumulation-steps 2")),
        *(f"-e 2 -g 4 --ds-stage1 {more}" for more in ("", MIXED)),
        *(f"-e 2 -g 4 --ds-stage2 {more}" for more in ("", MIXED, AGAIN, f"--ds-no-overlap {MIXED}")),
        *(f"-e 2 -g 4 {more}" for more in ("", MIXED, AGAIN, f"--ds-hpz-partition 2 {MIXED}")),
        *(f"-e 3 -g 4 {more}" for more in ("--tp 1", f"--tp 2 {MIXED}", f"--tp 4 {AGAIN}", "--tp 1 --cp 2")),
        *(f"-e 3 -g 4 {more}" for more in ("--tp 2 --pp 2", "--tp 1 --pp 4", "--tp 1 --pp 2 --vpp 2")),
    ],
    REAL: [
        *(f"-e 1 -g 4 {more}" for more in ("", MIXED, AGAIN)),
        *(f"-e 2 -g 8 --ds-stage2 {more}" for more in ("", MIXED, AGAIN)),
        *(f"-e 2 -g 8 {more}" for more in ("", MIXED, AGAIN, f"--ds-hpz-partition 4 {MIXED}")),
        *(f"-e 3 -g 8 --global-batch-size 8 {more} {MIXED}" for more in ("--tp 8", "--tp 4", "--tp 4 --pp 2")),
        *(f"-e 3 -g 8 --global-batch-size 8 {more}" for more in (f"--tp 2 --pp 4 {AGAIN}", f"--tp 4 --cp 2 {MIXED}")),
    ],
}  # fmt: skip


class Row(NamedTuple):
    """One case: what was estimated and what was allocated, in bytes."""

    case: str
    estimated: Peak
    measured: dict[str, Any]

    def errors(self) -> dict[str, float]:
        """Estimate over measurement: of each part of the state, and of the peak."""
        owned = self.measured["owned"]
        step = self.estimated.step
        weights = owned["weights"] + owned.get("secondary", 0)
        return {
            "weights": step.weights / weights,
            "gradients": step.gradients / owned["gradients"],
            "optimizer": step.optimizer / owned["optimizer"],
            "peak": self.estimated.highest.total / self.peak,
        }

    @property
    def peak(self) -> int:
        return int(max(self.measured["peaks"].values()))


def workload(words: str) -> Workload:
    """The training that the words of a launch on this machine give."""
    line = read_launch([*words.split(), "--site", "local"])
    experiment, choice = request_of(line)
    found = workload_of(prepare(experiment, choice.site).job)
    assert found is not None, words
    return found


def estimate(words: str, rank: int) -> Peak:
    """The peak of a rank, without what the process needs itself, which is not allocated as tensors."""
    w = workload(words)
    if w.sharding is not None:
        return peak_memory(w, framework=0.0)
    return of_stage(w, rank * w.layout.pp // w.ranks, w.checkpointing, 0.0)


def measure(words: str, rank: int, fake: bool) -> dict[str, Any]:
    """What a rank of that training allocates."""
    argv = [sys.executable, str(ROOT / "benchmarks/memory_of_training.py"), "--rank", str(rank)]
    argv += [*["--fake"] * fake, "--", *words.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def rows(model: str) -> Iterator[Row]:
    """Every case of a model, on the first rank and, of a pipeline, on the last one too."""
    for case in CASES[model]:
        words = f"{case} {model}"
        w = workload(words)
        for rank in dict.fromkeys([0, w.ranks - 1] if w.layout.pp > 1 else [0]):
            place = f", rank {rank}" if w.layout.pp > 1 else ""
            yield Row(f"`{' '.join(case.split())}`{place}", estimate(words, rank), measure(words, rank, model == REAL))


def table_of(model: str) -> None:
    """One line per case: the peak, and each estimate over what was allocated."""
    unit, size = ("MB", 1e6) if model == TINY else ("GB", 1e9)
    heads = ("peak, estimated", "allocated", "ratio", "weights", "gradients", "optimizer")
    print(f"| {model.partition(' --random')[0]} | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for row in rows(model):
        errors = row.errors()
        worst = max(worst, abs(errors["peak"] - 1))
        parts = " | ".join(f"{errors[name]:.3f}" for name in ("weights", "gradients", "optimizer"))
        print(
            f"| {row.case} | {row.estimated.highest.total / size:.2f} {unit} | {row.peak / size:.2f} {unit} "
            f"| {errors['peak']:.3f} | {parts} |",
            flush=True,
        )
    print(f"\nThe largest error of a peak: {worst:.1%}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODELS)
    only = parser.parse_args().only
    for name, model in MODELS.items():
        if only in (None, name):
            table_of(model)


if __name__ == "__main__":
    main()
