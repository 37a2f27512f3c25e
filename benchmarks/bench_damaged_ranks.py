"""A report of a thousand ranks of which 5 % of the files are damaged, beside the same job undamaged.

    python benchmarks/bench_damaged_ranks.py [--ranks 1000] [--damaged 50] [--repeat 3]

The files are small Kineto traces; six sorts of damage take turns (tests/synthetic/ranks.py). Both reports are made in
turn, each in a process of its own. Prints medians of wall time and memory, their ratio, and how many of the damaged
files the report names; fails where one is not named or the rest gives no answer."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.synthetic.ranks import DAMAGES, damaged, rank_trace  # noqa: E402  it is no part of the installed project


@dataclass(frozen=True)
class Cost:
    """What one report took, with its processes."""

    wall_s: float
    rss_bytes: int


def report(folder: Path, out: Path) -> Cost:
    """One report of a folder, whose page and JSON are written. Raises CalledProcessError."""
    command = [sys.executable, "-m", "harness", "report", str(folder), "--json", "--html", str(out / "page.html")]
    start = time.perf_counter()
    with (out / "report.json").open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(time.perf_counter() - start, usage.ru_maxrss * 1024)


def unnamed(out: Path, ranks: list[int]) -> list[int]:
    """The damaged ranks whose file neither the page nor the JSON names. Raises SystemExit: the rest has no answer."""
    found = json.loads((out / "report.json").read_text())
    if not found["steps"]["counted"]:
        raise SystemExit("the ranks that could be read gave no answer")
    page, said = (out / "page.html").read_text(), [f["evidence"] for f in found["quality"]["problems"]]
    return [r for r in ranks if f"rank{r}.json" not in page or not any(f"rank{r}.json" in one for one in said)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--damaged", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = {what: Path(name) / what for what in ("whole", "damaged")}
        for folder in folders.values():
            folder.mkdir()
            for rank in range(chosen.ranks):
                rank_trace(folder / f"rank{rank}.json", rank, chosen.ranks)
        ranks = [i * chosen.ranks // chosen.damaged for i in range(chosen.damaged)]
        for i, rank in enumerate(ranks):
            damaged(folders["damaged"] / f"rank{rank}.json", DAMAGES[i % len(DAMAGES)])
        costs: dict[str, list[Cost]] = {what: [] for what in folders}
        for _ in range(chosen.repeat):
            for what, folder in folders.items():
                costs[what].append(report(folder, Path(name)))
        lost = unnamed(Path(name), ranks)
    _show(costs)
    print(f"named: {len(ranks) - len(lost)} of {len(ranks)} damaged files")
    if lost:
        raise SystemExit(f"not named: ranks {lost}")


def _show(costs: dict[str, list[Cost]]) -> None:
    wall = {what: median(cost.wall_s for cost in each) for what, each in costs.items()}
    rss = {what: median(cost.rss_bytes for cost in each) for what, each in costs.items()}
    for what in costs:
        print(f"{what:8} {wall[what]:6.1f} s  {rss[what] / 1e6:6.0f} MB")
    ratios = wall["damaged"] / wall["whole"], rss["damaged"] / rss["whole"]
    print(f"damaged over whole: time {ratios[0]:.2f}, memory {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
