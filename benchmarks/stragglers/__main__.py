"""How much stragglers slow down the jobs of some timelines of operations: S, by operation, stage and worker, and why.

    cd benchmarks && ../.venv/bin/python -m stragglers FILE...

FILE: Parquet (needs pyarrow), CSV (also .csv.gz) or Chrome events (.json, .json.gz), one job each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the harness of this checkout

from harness.common.errors import HarnessError
from harness.common.format import duration
from stragglers.measure import measure
from stragglers.result import JobSlowdown
from stragglers.sentences import advice, further_sentences, straggler_sentences

_MOST_WORKERS = 10


def lines(job: JobSlowdown) -> list[str]:
    """What is printed of one job."""
    attempt = [] if job.cause == "none" else [f"Try: {advice(job)}."]
    doubts = [f"Note: {note}." for note in (job.left_out, *job.notes) if note]
    return [
        *straggler_sentences(job),
        *attempt,
        *further_sentences(job),
        *doubts,
        "",
        f"{'operation':28} {'S':>8}",
        *(f"{name:28} {slowdown:8.3f}" for name, slowdown in job.by_operation.items()),
        "",
        f"{'stage':28} {'S':>8} {'forward':>10} {'backward':>10}",
        *(
            f"{s.stage:<28} {s.slowdown:8.3f} {duration(s.forward_ns):>10} {duration(s.backward_ns):>10}"
            for s in job.stages
        ),
        "",
        f"{'worker':28} {'S':>8}",
        *(
            f"{f'rank {w.rank} (stage {w.stage}, DP rank {w.dp_rank})':28} {w.slowdown:8.3f}"
            for w in job.workers[:_MOST_WORKERS]
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every file was measured; 1: one cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m stragglers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    code = 0
    for path in parser.parse_args(arguments).files:
        try:
            print(f"{path}\n\n" + "\n".join(lines(measure(path))) + "\n")
        except HarnessError as error:
            print(error, file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
