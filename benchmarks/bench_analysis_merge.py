"""Merging many ranks: real parts copied and shifted to a large job, and what that costs.

    python benchmarks/bench_analysis_merge.py TRACE… [--ranks 1000]

The traces are one job's ranks, of which the parts are made once. Prints the time and memory of writing the partial
results as the tasks of a job array do, reading them back, merging and finishing, for a tenth of the ranks and for all.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.part import RankPart, compressed, deserialize, in_order, serialize
from harness.analysis.summary import Window
from harness.measure.paths import measure_files


def shifted(part: RankPart, rank: int, world: int) -> RankPart:
    """A copy as another rank, four to a host, each host's clock a little apart."""
    source = part.source.model_copy(
        update={"rank": rank, "path": f"rank{rank}.json", "world_size": world, "host": f"node{rank // 4}"}
    )
    devices = [d.model_copy(update={"rank": rank, "source": source.path}) for d in part.devices]
    epoch = (part.epoch_ns or 0) + 1000 * (rank // 4)
    return part.model_copy(update={"source": source, "devices": devices, "epoch_ns": epoch})


def held_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(real: list[RankPart], ranks: int) -> None:
    """Write, read, merge and finish `ranks` ranks; print each step's time."""
    before, start = held_mb(), time.process_time()
    texts = [serialize([shifted(real[i % len(real)], i, ranks)]) for i in range(ranks)]
    wrote = time.process_time()
    parts = in_order(part for text in texts for part in deserialize(text, list[RankPart]))
    merged = time.process_time()
    summary = summarise_job(parts)
    done = time.process_time()
    size, grown = sum(map(len, texts)) / 1e6, held_mb() - before
    print(
        f"  {ranks:5} ranks   write {wrote - start:5.2f}   read and merge {merged - wrote:5.2f}"
        f"   finish {done - merged:5.2f} cpu-s   partial results {size:6.1f} MB"
        f"   memory grew {grown:6.0f} MB   {len(summary.clocks)} clocks, {len(summary.collectives)} rows of collectives"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--ranks", type=int, default=1000)
    options = parser.parse_args()
    real, broken, _ = measure_files(options.traces, Window.STEPS)
    if broken:
        raise SystemExit(broken[0].evidence)
    real = [compressed(part) for part in real]
    print(f"{len(real)} real parts")
    measured(real, options.ranks // 10)
    measured(real, options.ranks)


if __name__ == "__main__":
    main()
