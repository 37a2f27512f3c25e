"""What a warm `slurm.sh … --dry-run` costs, against importing the libraries it stands on, in the same run.

    .venv/bin/python benchmarks/bench_bootstrap.py [--rounds N] [--limit 2.0]

The commands take turns, so that whatever else the machine does falls on all of them; medians are compared. Exits
1 when a dry run takes more than `--limit` times the CPU time of the imports; on an idle machine that is wall time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYTHON = str(ROOT / ".venv" / "bin" / "python")
SLURM_SH = ["bash", str(ROOT / "slurm.sh")]
IMPORTS = "import typer, pydantic, jinja2, yaml"

LEONARDO = "-e 2 -n 2 --site leonardo --dry-run -- --ds-no-overlap"
COMMANDS = {
    f'python -c "{IMPORTS}"': [PYTHON, "-c", IMPORTS],
    "slurm.sh -e 1 --dry-run": [*SLURM_SH, "-e", "1", "--dry-run"],
    f"slurm.sh {LEONARDO}": [*SLURM_SH, *LEONARDO.split()],
    "slurm.sh --help": [*SLURM_SH, "--help"],
    "python -I -m harness -e 1 --dry-run": [PYTHON, "-I", "-m", "harness", "-e", "1", "--dry-run"],
    "python -c pass": [PYTHON, "-c", "pass"],
}


class Cost(NamedTuple):
    """Of one run, its children included."""

    wall_s: float
    cpu_s: float


def measure(command: list[str]) -> Cost:
    """Run it once; it must succeed."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    return Cost(time.perf_counter() - started, usage.ru_utime + usage.ru_stime)


def main() -> int:
    """Print the table; 1 when a dry run is over the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=2.0)
    arguments = parser.parse_args()
    for command in COMMANDS.values():
        measure(command)  # bytecode and file caches
    costs: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
    for _ in range(arguments.rounds):
        for name, command in COMMANDS.items():
            costs[name].append(measure(command))
    medians = {name: Cost(*map(statistics.median, zip(*runs, strict=True))) for name, runs in costs.items()}
    base = next(iter(medians.values()))
    print(f"{'wall ms':>8} {'ratio':>6} {'CPU ms':>8} {'ratio':>6}")
    for name, (wall_s, cpu_s) in medians.items():
        ratios = wall_s / base.wall_s, cpu_s / base.cpu_s
        print(f"{wall_s * 1e3:>8.0f} {ratios[0]:>6.2f} {cpu_s * 1e3:>8.0f} {ratios[1]:>6.2f}  {name}")
    dry_runs = {name: cost for name, cost in medians.items() if "--dry-run" in name}
    slow = [name for name, cost in dry_runs.items() if cost.cpu_s > arguments.limit * base.cpu_s]
    for name in slow:
        print(f"over {arguments.limit:g} times the imports: {name}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
