"""Sweeps: how long 200 points take to expand and validate, and what is left of a sweep that is killed 20 times.

.venv/bin/python benchmarks/bench_sweep.py              the dry run of 200 points, start of the command included
.venv/bin/python benchmarks/bench_sweep.py --kills 20   real trainings on this machine, the driver killed (SIGKILL)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TWO_HUNDRED = {
    "name": "two-hundred",
    "base": {"exercise": 2, "nodes": 2, "gpus_per_node": 4},
    "matrix": {
        "micro_batch_size": [1, 2, 4, 8, 16],
        "gradient_accumulation_steps": [1, 2, 4, 8, 16],
        "mixed_precision": [True, False],
        "hpz_partition": [1, 2, 4, 8],
    },
}
LIMIT_S = 120
REAL = {
    "name": "killed",
    "base": {
        "exercise": 1, "gpus_per_node": 1, "time": "00:02:00", "seq_length": 32,
        "skip_steps": 1, "wait_steps": 0, "warmup_steps": 1, "active_steps": 2,
    },
    "matrix": {"micro_batch_size": [1, 2, 3, 4]},
    "repeats": 2,
}  # fmt: skip


def harness(folder: Path, *words: str) -> list[str]:
    """The command line; `folder` is for the runs."""
    os.environ["HARNESS_RUNS"] = str(folder / "runs")
    return [sys.executable, "-m", "harness", *words]


def dry(folder: Path, times: int) -> None:
    """The wall time of a dry run of 200 points, and of the same command with one point."""
    for name, sweep in (("200 points", TWO_HUNDRED), ("1 point", {**TWO_HUNDRED, "matrix": {}})):
        file = folder / "sweep.json.yaml"
        file.write_text(json.dumps(sweep), encoding="utf-8")
        took, cpu = [], []
        for _ in range(times):
            begin, before = time.perf_counter(), os.times()
            done = subprocess.run(
                harness(folder, "sweep", str(file), "--site", "leonardo", "--dry-run"),
                cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
            took.append(time.perf_counter() - begin)
            after = os.times()
            cpu.append(sum(after[2:4]) - sum(before[2:4]))
        lines = len(done.stdout.splitlines())
        wall, busy = statistics.median(took), statistics.median(cpu)
        print(f"{name}: {lines} runs, median of {times}: {wall:.2f} s (least {min(took):.2f} s), CPU {busy:.2f} s")


def killed(folder: Path, kills: int, cap_hours: float, seed: int) -> None:
    """Kill the driver of a sweep of real trainings at random moments, then let it end; count what is there."""
    file = folder / "killed.yaml"
    file.write_text(json.dumps(REAL), encoding="utf-8")
    argv = harness(folder, "sweep", str(file), "--site", "local", "--yes", "--json", "--max-gpu-hours", str(cap_hours))
    draw, alive = random.Random(seed), 0
    begin = time.perf_counter()
    for _ in range(kills):
        quiet = subprocess.DEVNULL
        driver = subprocess.Popen(argv, cwd=ROOT, stdout=quiet, stderr=quiet)
        try:
            driver.wait(draw.uniform(0.2, 6.0))
        except subprocess.TimeoutExpired:
            alive += 1
        driver.kill()
        driver.wait()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    report(told, folder, cap_hours)
    took = time.perf_counter() - begin
    print(f"{alive} of {kills} kills hit a driver at work; {took:.0f} s in all; exit {done.returncode}")


def report(told: dict[str, Any], folder: Path, cap_hours: float) -> None:
    """Runs per point, and the process hours: spent, and the most that could have been at any start."""
    wanted = [(state["point"], state["repeat"]) for state in told["states"]]
    ends: Counter[tuple[str, int]] = Counter()
    others: Counter[str] = Counter()
    spent_s = worst_s = 0.0
    for path in sorted((folder / "runs").glob("exercise_*/profiler/[!.]*/run.json"), key=_created):
        record = json.loads(path.read_text(encoding="utf-8"))
        status = json.loads(file.read_text()) if (file := path.with_name("status.json")).is_file() else {}
        worst_s = max(worst_s, spent_s + LIMIT_S)
        if status.get("state") == "completed":
            ends[record["part"]["point"], record["part"]["repeat"]] += 1
        else:
            others[str(status.get("state", "never began"))] += 1
        if "ended_ns" in status and status.get("started_ns"):
            spent_s += ((status["ended_ns"] or 0) - status["started_ns"]) / 1e9
    print(f"{len(wanted)} runs wanted: {sum(ends[slot] == 1 for slot in wanted)} made once, "
          f"{sum(ends[slot] > 1 for slot in wanted)} more than once, {sum(ends[slot] == 0 for slot in wanted)} never; "
          f"kept beside them: {dict(others) or 'nothing'}")  # fmt: skip
    print(f"spent {spent_s / 3600:.4f} process hours, at any start at most {worst_s / 3600:.4f}; cap {cap_hours}")


def _created(path: Path) -> int:
    return int(json.loads(path.read_text(encoding="utf-8"))["created_ns"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=7, help="dry runs to take the median of")
    parser.add_argument("--kills", type=int, default=0, help="kill the driver of real trainings so often")
    parser.add_argument("--cap", type=float, default=0.1, help="--max-gpu-hours of the killed sweep")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-sweep-") as folder:
        if asked.kills:
            killed(Path(folder), asked.kills, asked.cap, asked.seed)
        else:
            dry(Path(folder), asked.times)


if __name__ == "__main__":
    main()
