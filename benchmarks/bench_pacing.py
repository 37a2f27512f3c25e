"""Pacing of very many ranks: slow nodes injected, who is named, and the page that shows it.

    python benchmarks/bench_pacing.py TRACE… [--ranks 1000] [--steps 50] [--slow 41,77] [--by 0.123] [--html FILE]
        [--json FILE] [--healthy 0]

The traces are one job's ranks. Their parts are made once and replicated, with own ranks, hosts, clocks and switches (16
nodes each), and with noise of 3 % on every step: what is printed, the summary and the page say so. The nodes of --slow
take longer for their own work and their steps by the share --by. --healthy N: as many jobs without a slow node, each
with noise of its own, and how many of them name somebody.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from bench_analysis_merge import shifted  # noqa: E402  it lies beside this file
from bench_merge_tree import label  # noqa: E402

from harness.analysis.job.grouping import align_clocks  # noqa: E402  found by the path above
from harness.analysis.job.matching import match_collectives  # noqa: E402
from harness.analysis.job.pacing import pacing  # noqa: E402
from harness.analysis.job.summarise import summarise_job  # noqa: E402
from harness.analysis.process.part import RankPart  # noqa: E402
from harness.analysis.summary import Summary, Window  # noqa: E402
from harness.measure.paths import measure_files  # noqa: E402
from harness.report.page.compose import write_page  # noqa: E402
from harness.report.tables.pace import pace_sentences  # noqa: E402

NOISE = 0.03
PER_NODE, PER_SWITCH = 4, 16  # ranks, nodes


def replicated(
    real: Sequence[RankPart], ranks: int, steps: int, slow: Mapping[int, float], seed: int = 0
) -> list[RankPart]:
    """Copies of the real parts as the ranks of one job, the steps repeated up to `steps`. slow: nodes, and the
    share by which each takes longer."""
    random = np.random.default_rng(seed)
    return [
        _paced(shifted(real[i % len(real)], i, ranks), steps, 1 + slow.get(i // PER_NODE, 0.0), random)
        for i in range(ranks)
    ]


def _paced(part: RankPart, steps: int, factor: float, random: np.random.Generator) -> RankPart:
    noise = factor * (1 + NOISE * random.standard_normal(steps))
    took = (np.resize(part.steps.durations_ns, steps) * noise).astype(np.int64)
    own = (np.resize(part.steps.own_ns or part.steps.durations_ns, steps) * noise).astype(np.int64)
    changed = {
        "durations_ns": took.tolist(),
        "numbers": list(range(steps)),
        "begins_ns": (np.cumsum(took) - took).tolist(),
        "own_ns": own.tolist(),
    }
    return part.model_copy(update={"steps": part.steps.model_copy(update=changed)})


def switches(ranks: int) -> dict[str, str]:
    """A name for the switch of every host."""
    nodes = range(-(-ranks // PER_NODE))
    return {f"node{node}": f"leaf{node // PER_SWITCH:02d}" for node in nodes}


def summary_of(parts: Sequence[RankPart], real: int) -> Summary:
    """As a report makes it, with a word about the copies."""
    return summarise_job(parts, None, switches(len(parts))).with_problems([label(real, len(parts))])


def false_names(real: Sequence[RankPart], jobs: int, ranks: int, steps: int) -> int:
    """How many of the healthy jobs name somebody."""
    found = 0
    for seed in range(jobs):
        parts = replicated(real, ranks, steps, {}, seed)
        clocks = align_clocks(parts, match_collectives(parts, ranks).matched)
        found += bool(getattr(pacing(parts, clocks), "outlier_count", 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--slow", default="41,77", help="numbers of the slow nodes, with commas; empty: none")
    parser.add_argument("--by", type=float, default=0.123, help="how much longer they take, as a share")
    parser.add_argument("--html", type=Path, help="write the page here")
    parser.add_argument("--json", type=Path, help="write the summary here")
    parser.add_argument("--healthy", type=int, default=0, help="jobs without a slow node")
    options = parser.parse_args()
    real, broken, _ = measure_files(options.traces, Window.STEPS)
    if broken:
        raise SystemExit(broken[0].evidence)
    slow = dict.fromkeys((int(node) for node in options.slow.split(",") if node), options.by)
    print(f"REPLICATED: {options.ranks} ranks are copies of {len(real)} real ones, with {NOISE:.0%} noise")
    parts = replicated(real, options.ranks, options.steps, slow)
    clocks = align_clocks(parts, match_collectives(parts, options.ranks).matched)
    start = time.process_time()
    pace = pacing(parts, clocks, switches(options.ranks))
    took_s = time.process_time() - start
    summary = summary_of(parts, len(real))
    size_kb = len(pace.model_dump_json()) / 1e3 if pace else 0
    print(
        f"  pacing in {took_s:.2f} CPU-s, {size_kb:.0f} kB of {len(summary.model_dump_json()) / 1e3:.0f} kB of summary"
    )
    print(*(f"  {sentence}" for sentence in pace_sentences(summary)), sep="\n")
    if options.json:
        options.json.write_text(summary.model_dump_json(), encoding="utf-8")
    if options.html:
        write_page(None, summary, options.html)
        print(f"  page {options.html.stat().st_size / 1e6:.1f} MB")
    if options.healthy:
        found = false_names(real, options.healthy, options.ranks, options.steps)
        print(f"  of {options.healthy} healthy jobs {found} name somebody")


if __name__ == "__main__":
    main()
