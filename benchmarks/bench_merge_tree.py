"""A hundred thousand ranks merged as a tree on one node, beside the flat merge.

    python benchmarks/bench_merge_tree.py TRACE… [--ranks 100000] [--flat 4000] [--leaf 4000] [--out FILE]

The traces are one job's ranks. Their parts are made once and replicated, with own ranks, hosts and clocks: what
is printed, and the summary, say so. Leaves and joins are branches on disk, made by worker processes.
The wall time is from the first copy to the summary as JSON. Memory is an upper bound: this
process's largest, and as many times the largest worker's as there are workers. The flat merge holds all parts at once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from harness.analysis.job.summarise import summarise_job  # noqa: E402  found by the path above
from harness.analysis.process.part import RankPart, deserialize, in_order, serialize  # noqa: E402
from harness.analysis.summary import Problem, Summary, Window  # noqa: E402
from harness.measure.partial_merge import PartialMerge, join_partial_merges, merge_of_parts, summarise_partial_merge  # noqa: E402
from harness.measure.paths import measure_files  # noqa: E402
from harness.traces.pool import process_pool  # noqa: E402

AT_ONCE = 500  # parts in memory before they are reduced
FAN_IN = 8  # branches that one process joins


def shifted(part: RankPart, rank: int, world: int) -> RankPart:
    """A copy as another rank, four to a host, each host's clock a little apart."""
    place = {"rank": rank, "path": f"rank{rank}.json", "world_size": world, "host": f"node{rank // 4}"}
    source = part.source.model_copy(update=place)
    devices = [d.model_copy(update={"rank": rank, "source": source.path}) for d in part.devices]
    epoch = (part.epoch_ns or 0) + 1000 * (rank // 4)
    return part.model_copy(update={"source": source, "devices": devices, "epoch_ns": epoch})


def replicated(real: Sequence[RankPart], ranks: range, world: int) -> list[RankPart]:
    """Copies of the real parts as these ranks of one job."""
    return [shifted(real[i % len(real)], i, world) for i in ranks]


def label(real: int, ranks: int) -> Problem:
    """What a reader of the summary must know first."""
    evidence = f"{ranks} ranks are copies of {real} that were recorded: made by a benchmark, no job's"
    return Problem.doubt("the ranks are replicated", evidence)


def leaf(real: Sequence[RankPart], world: int, ranks: range, output: Path) -> None:
    """The work of one process, with copies in place of measured files."""
    chunks = (ranks[at : at + AT_ONCE] for at in range(0, len(ranks), AT_ONCE))
    merges = [merge_of_parts(replicated(real, some, world)) for some in chunks]
    output.write_bytes(serialize(join_partial_merges(merges)))


def joined(branches: Sequence[Path]) -> PartialMerge:
    return join_partial_merges([deserialize(file.read_bytes(), PartialMerge) for file in branches])


def join_files(branches: Sequence[Path], output: Path) -> None:
    output.write_bytes(serialize(joined(branches)))


def tree(real: Sequence[RankPart], world: int, each: int, workers: int, folder: Path) -> Summary:
    """All ranks by leaves, joins of FAN_IN branches, and the root."""
    ranks = [range(at, min(at + each, world)) for at in range(0, world, each)]
    merges = [folder / f"merge-0-{i}.part" for i in range(len(ranks))]
    with process_pool(workers) as pool:
        list(pool.map(partial(leaf, real, world), ranks, merges))
        level = 0
        while len(merges) > FAN_IN:
            level += 1
            groups = [merges[at : at + FAN_IN] for at in range(0, len(merges), FAN_IN)]
            merges = [folder / f"merge-{level}-{i}.part" for i in range(len(groups))]
            list(pool.map(join_files, groups, merges))
    (summary,) = summarise_partial_merge(joined(merges), [label(len(real), world)])
    return summary


def flat(real: Sequence[RankPart], world: int) -> Summary:
    """All parts in one process, merged at once."""
    return summarise_job(in_order(replicated(real, range(world), world)))


def measured(make: Callable[[], Summary], workers: int, out: Path | None) -> dict[str, float]:
    """What it took to make a summary and its JSON."""
    start = time.perf_counter()
    summary = make()
    text = summary.model_dump_json()
    wall_s = time.perf_counter() - start
    if out is not None:
        out.write_text(text, encoding="utf-8")
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak_kb = own.ru_maxrss + workers * children.ru_maxrss
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in (own, children))
    return {
        "ranks": len(summary.ranks),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_gb": peak_kb * 1024 / 1e9,
        "json_mb": len(text) / 1e6,
        "detailed": sum(bool(device.kinds) for device in summary.devices),
    }


def in_a_process(way: str, ranks: int, options: argparse.Namespace) -> dict[str, float]:
    """One way, in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, *map(str, options.traces), "--only", way, "--ranks", str(ranks)]
    command += ["--leaf", str(options.leaf), "--workers", str(options.workers)]
    command += ["--out", str(options.out)] if options.out and way == "tree" else []
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    print(
        f"  {way:4}  {found['ranks']:7.0f} ranks   wall {found['wall_s']:6.1f} s   {found['cpu_s']:6.1f} CPU-s   "
        f"at most {found['peak_gb']:5.2f} GB   summary {found['json_mb']:6.1f} MB, {found['detailed']:.0f} in detail"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--ranks", type=int, default=100_000)
    parser.add_argument("--flat", type=int, default=4000, help="ranks of the flat merge; 0: none")
    parser.add_argument("--leaf", type=int, default=4000, help="ranks of one leaf")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="keep the tree's summary here")
    parser.add_argument("--only", choices=("tree", "flat"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    real, broken, _ = measure_files(options.traces, Window.STEPS)
    if broken:
        raise SystemExit(broken[0].evidence)
    if options.only == "flat":
        print(json.dumps(measured(partial(flat, real, options.ranks), 0, None)))
    elif options.only == "tree":
        with tempfile.TemporaryDirectory() as folder:
            make = partial(tree, real, options.ranks, options.leaf, options.workers, Path(folder))
            print(json.dumps(measured(make, options.workers, options.out)))
    else:
        print(f"REPLICATED: {options.ranks} ranks are copies of {len(real)} real ones; {options.workers} workers")
        whole = in_a_process("tree", options.ranks, options)
        if options.flat:
            beside = in_a_process("flat", options.flat, options)
            each = {name: beside[name] / beside["ranks"] * whole["ranks"] for name in ("wall_s", "peak_gb")}
            print(
                f"  per rank the flat merge takes {each['wall_s'] / whole['wall_s']:.1f} times the wall time and "
                f"{each['peak_gb'] / whole['peak_gb']:.1f} times the memory of the tree"
            )


if __name__ == "__main__":
    main()
