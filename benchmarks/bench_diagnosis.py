"""How reliable the diagnosis is. Faults are injected into real trainings on the CPU, each paired with a healthy run.

    python benchmarks/bench_diagnosis.py OUT --make [--exercises 1 2 3] [--ranks 2] [--seeds 1 2] [--minutes 20]
    python benchmarks/bench_diagnosis.py OUT --measure      # the kept runs again, by the code of today
    python benchmarks/bench_diagnosis.py OUT                # the tables of docs/development/diagnosis.md

A later start with the same folder goes on where the earlier one stopped. Anything else that runs on the machine is in
these numbers, too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path

import diagnosis_tables
from diagnosis_cases import pairs
from diagnosis_runs import Case, Found, kept, make, measure


def make_all(out: Path, wanted: Iterable[Case], minutes: float) -> None:
    """Make the runs that `out` does not have yet."""
    until = time.monotonic() + 60 * minutes
    done = {case.folder for case, _ in kept(out)}
    for case in wanted:
        if case.folder not in done:
            if time.monotonic() > until:
                return
            print(line(case, make(case, out)), flush=True)


def measure_again(out: Path, only: str) -> None:
    """The kept runs by the code of today, as many at once as there are cores."""
    chosen = [(case, place) for case, place in kept(out) if only in case.folder]
    cases, places = zip(*chosen, strict=True)
    with Pool() as pool:
        for case, found in zip(cases, pool.imap(measure, places), strict=True):
            print(line(case, found), flush=True)


def line(case: Case, found: Found) -> str:
    """One run in words."""
    first = next(iter(diagnosis_tables.departures(found)), None)
    lost = diagnosis_tables.injected_ns(case, found)[0] / 1e6
    said = f"{first['cause']} {first['ranks']} {first['lost_ns'] / 1e6:.1f} ms" if first else "nothing"
    return f"{case.folder}: step {found['step_ns'] / 1e6:.1f} ms, injected {lost:.1f}, {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the runs are kept")
    parser.add_argument("--make", action="store_true", help="make runs")
    parser.add_argument("--measure", action="store_true", help="measure the kept runs again")
    parser.add_argument("--exercises", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", default="", help="pairs whose first run has this in its name; of --measure: runs")
    parser.add_argument("--turns", type=int, default=1, help="how often each pair is made, before and after in turn")
    parser.add_argument("--what-ifs", action="store_true", help="pairs that compare a what-if with runs")
    parser.add_argument("--minutes", type=float, default=1e6)
    asked = parser.parse_args()
    if asked.make:
        chosen = (pair for seed in asked.seeds for pair in pairs(asked.exercises, asked.ranks, seed))
        wanted = (
            replace(case, turn=turn)
            for pair in chosen
            if asked.only in pair[0].folder and (not asked.what_ifs or diagnosis_tables.what_if_of(pair[0]))
            for turn in range(asked.turns)
            for case in pair
        )
        make_all(asked.out, wanted, asked.minutes)
    if asked.measure:
        measure_again(asked.out, asked.only)
    runs = [
        (case, json.loads((place / "found.json").read_text(encoding="utf-8")))
        for case, place in kept(asked.out)
        if (place / "found.json").is_file()  # else it is being made
    ]
    for each in diagnosis_tables.tables(runs):
        print(each)


if __name__ == "__main__":
    main()
