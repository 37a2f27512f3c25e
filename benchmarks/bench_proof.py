"""The tables of diagnosis.md from nothing: own runs, simulated GPU jobs, real traces of others. Half an hour on
two cores.

    python benchmarks/bench_proof.py OUT [--traces FOLDER] [--minutes 10] [--seed 1]

Own runs train on the CPU, for some minutes (`bench_diagnosis.py` makes more). Simulated jobs are made by
`bench_gpu_jobs.py`. Traces of others lie in FOLDER, with a labels.json that gives each file's truth, a pattern that a
right answer matches, and one that a wrong answer matches; without FOLDER this table is left out, and says so. Each
command that is called goes on where an earlier start ended, but simulated jobs, which are made anew.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bench_gpu_jobs
from gpu_jobs.tables import tables

HERE = Path(__file__).parent
COUNTS = (9, 50, 90)  # of each fault, of pairs, of healthy jobs


def own_runs(out: Path, minutes: float, seed: int) -> str:
    """Trainings on the CPU, each with a fault and without."""
    command = [sys.executable, str(HERE / "bench_diagnosis.py"), str(out), "--make"]
    command += ["--minutes", str(minutes), "--seeds", *map(str, range(seed, seed + 9))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"No own runs: {done.stderr.strip().splitlines()[-1]}"
    return "\n".join(line for line in done.stdout.splitlines() if not re.match(r"e\dx", line))


def of_others(folder: Path | None) -> Iterator[str]:
    """Each recording with its truth and whether the first sentences say so."""
    if folder is None:
        yield "Traces of others: none were given (--traces FOLDER)."
        return
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    right = 0
    yield "| recording | what is true of it | answered so |\n|---|---|---|"
    for name, label in labels.items():
        said = answer(folder / name)
        good = bool(re.search(label["accept"], said, re.I)) and not re.search(label["forbid"], said, re.I)
        right += good
        yield f"| {name} | {label['truth']} | {'yes' if good else f'no: {said[:160]}'} |"
    yield f"\n{right} of {len(labels)} are answered as the label says."


def answer(trace: Path) -> str:
    """What the report says before its first table."""
    command = [sys.executable, "-m", "harness", "report", str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)
    lines = done.stdout.split("Where the time went")[0].split("\n")[2:]
    return re.sub(r"\s+", " ", " ".join(lines) or done.stderr).strip()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the runs and OUT/tables.md are kept")
    parser.add_argument("--traces", type=Path, help="recordings of others, with their labels.json")
    parser.add_argument("--minutes", type=float, default=10, help="of own trainings")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    simulated = tables(bench_gpu_jobs.make(given.out / "simulated", given.seed, COUNTS))
    parts = ["## Own runs", own_runs(given.out / "own", given.minutes, given.seed)]
    parts += ["## Simulated GPU jobs", simulated, "## Real traces of others", *of_others(given.traces)]
    (given.out / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
