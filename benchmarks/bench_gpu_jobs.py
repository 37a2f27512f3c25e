"""Simulated GPU jobs with planted faults, and what the report says of them.

python benchmarks/bench_gpu_jobs.py OUT [--each 10] [--pairs 60] [--healthy 100] [--seed 1] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
from multiprocessing import Pool
from pathlib import Path

from gpu_jobs.cases import requests
from gpu_jobs.judge import SURE, Result, judge


def line(result: Result) -> str:
    """One job in words."""
    faults = "; ".join(
        f"{f.name}: {f.own_ns / 1e6:.2f} ms "
        + (
            "not told"
            if f.place is None
            else f"#{f.place} {(f.told_ns or 0) / 1e6:.2f} {'ok' if f.right else f'WRONG c{f.cause:d} r{f.ranks:d} w{f.where:d}'}"
        )
        for f in result.faults
    )
    return (
        f"{result.name} {result.tool} {result.bound} {result.kind}x{result.ranks}: step {result.step_ns / 1e6:.2f} "
        f"({result.measured_ns / 1e6:.2f}) err {result.replay_error:.4f}; {faults}{'' if result.in_order else ' ORDER'} {'FALSE ' + str(result.false) if result.false else ''}"
    )


def tables(results: list[Result]) -> str:
    faults = [f for r in results for f in r.faults]
    due = [(r, f) for r in results for f in r.faults if f.own_ns >= SURE * r.step_ns]
    right = [f for r, f in due if f.right]
    errors = sorted(abs(f.error) for f in right if f.error is not None)
    healthy = [r for r in results if not r.faults]
    whats = sorted(abs(told / true - 1) for r in results for told, true in r.what_ifs.values())
    out = [
        f"{len(results)} jobs, {len(faults)} faults, {len(due)} of them cost at least {SURE:.0%} of the step"
    ]
    out.append(
        f"cause, ranks and place right: {len(right)} of {len(due)} = {len(right) / max(len(due), 1):.1%}"
    )
    if errors:
        out.append(
            f"lost time within 10 %: {sum(e <= 0.1 for e in errors)} of {len(errors)} = {sum(e <= 0.1 for e in errors) / len(errors):.1%}; median {errors[len(errors) // 2]:.1%}"
        )
    out.append(f"order wrong: {sum(not r.in_order for r in results)}")
    out.append(
        f"false in healthy: {sum(bool(r.false) for r in healthy)} of {len(healthy)}; in all {sum(bool(r.false) for r in results)}"
    )
    if whats:
        out.append(f"what-ifs: {len(whats)}, median error {whats[len(whats) // 2]:.1%}")
        names = sorted({n for r in results for n in r.what_ifs})
        for name in names:
            e = sorted(
                abs(r.what_ifs[name][0] / r.what_ifs[name][1] - 1) for r in results if name in r.what_ifs
            )
            out.append(f"   {name}: {len(e)}, median {e[len(e) // 2]:.1%}, 90th {e[int(0.9 * len(e))]:.1%}")
    by = {}
    for r, f in due:
        by.setdefault(r.name.rsplit("-", 1)[0] if not r.name.startswith("pair") else "pair", []).append(
            (r, f)
        )
    for name, rows in by.items():
        e = [abs(f.error) for _, f in rows if f.right and f.error is not None]
        out.append(
            f"   {name}: right {sum(f.right for _, f in rows)} of {len(rows)}, within 10 % {sum(x <= 0.1 for x in e)} of {len(e)}, first {sum(f.place == 0 for _, f in rows)}"
        )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [
        r
        for r in requests(given.seed, given.each, given.pairs, given.healthy)
        if given.only in f"{r.kind}-{r.number}"
    ]
    results = []
    with Pool(2) as pool, (given.out / "jobs.jsonl").open("w") as kept:
        for result in pool.imap(judge, wanted):
            results.append(result)
            kept.write(json.dumps(result.as_json()) + "\n")
            print(line(result), flush=True)
    print(tables(results))


if __name__ == "__main__":
    main()
