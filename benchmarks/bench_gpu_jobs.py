"""What the report says of simulated GPU jobs with planted faults, beside what is true of them.

    python benchmarks/bench_gpu_jobs.py OUT [--each 9] [--pairs 50] [--healthy 90] [--starts 10] [--seed 1] [--only X]

Each job is a program in simulated time (gpu_jobs/), written as Kineto or nsys files and reported; the same program
without the fault says what the fault costs. OUT/jobs.jsonl has every job, OUT/tables.md the tables of
docs/development/diagnosis.md, OUT/starts.md that of jobs which were recorded from their start. Same seed, same jobs.
"""

from __future__ import annotations

import argparse
import json
from multiprocessing import Pool
from pathlib import Path

from gpu_jobs.cases import requests
from gpu_jobs.judge import Result, judge, judge_start
from gpu_jobs.start_cases import start_requests
from gpu_jobs.tables import line, start_table, tables


def make(out: Path, seed: int, counts: tuple[int, int, int], only: str = "") -> list[Result]:
    """Make and judge the jobs, two at a time. counts: of each fault, of pairs, of healthy jobs."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = [r for r in requests(seed, *counts) if only in f"{r.kind}-{r.number}"]
    results = []
    with Pool(2) as pool, (out / "jobs.jsonl").open("w", encoding="utf-8") as kept:
        for result in pool.imap(judge, wanted):
            results.append(result)
            kept.write(json.dumps(result.as_json()) + "\n")
            print(line(result), flush=True)
    (out / "tables.md").write_text(tables(results) + "\n", encoding="utf-8")
    return results


def make_starts(out: Path, seed: int, each: int, only: str = "") -> str:
    """The table of jobs that are recorded from their start."""
    wanted = [r for r in start_requests(seed, each) if only in f"{r.kind}-{r.number}"]
    with Pool(2) as pool:
        text = start_table(pool.map(judge_start, wanted))
    (out / "starts.md").write_text(text + "\n", encoding="utf-8")
    return text


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the results are kept")
    parser.add_argument("--each", type=int, default=9, help="jobs of each fault")
    parser.add_argument("--pairs", type=int, default=50, help="jobs with two faults")
    parser.add_argument("--healthy", type=int, default=90, help="jobs without a fault")
    parser.add_argument("--starts", type=int, default=10, help="jobs of each kind that are recorded from their start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only jobs whose name has this")
    given = parser.parse_args()
    print(tables(make(given.out, given.seed, (given.each, given.pairs, given.healthy), given.only)))
    print(make_starts(given.out, given.seed, given.starts, given.only))


if __name__ == "__main__":
    main()
