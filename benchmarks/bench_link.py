"""Is "twice the bandwidth" right? Exercise 1 on a real two-node Slurm over a slow link, then one twice as fast.

    python benchmarks/bench_link.py [--rounds 2] [--rate 20]

The Slurm is the tests' one: it needs root, network namespaces and tc, and `scripts/test tests/slurm` once before, which
installs it. The link is a token bucket of 128 kB: what gathers in it while nothing is sent goes out at once, so that a
run on it is a little faster than its rate allows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.slurm.slurm_cluster import Slurm, start
from tests.slurm.slurm_sh import SHORT, TWO_NODES, SlurmSh

BUCKETS = "small-buckets,kb=200"  # messages of several sizes, by which α and β are told apart


def step(slurm_sh: SlurmSh, site: Path, rate: str) -> dict[str, Any]:
    """The replay of one training over a link of this rate."""
    slurm_sh.slurm.set_rate(rate)
    done = slurm_sh(*TWO_NODES, "--site", site, "--wait", *SHORT, "--active-steps", "8", "--fault", BUCKETS)
    if done.returncode:
        raise SystemExit(f"the training failed:\n{done.stderr[-2000:]}")
    summary = json.loads((Path(slurm_sh.status("last")["path"]) / "summary.json").read_text(encoding="utf-8"))
    replay: dict[str, Any] = summary["replay"]
    return replay


def compare(slurm: Slurm, runs: Path, rounds: int, rate: int) -> None:
    """One line per round: the step, the prediction with its interval, and what was measured."""
    slurm_sh = SlurmSh(slurm, runs)
    site = slurm_sh.site("plain")
    errors = []
    for _ in range(rounds):
        slow, fast = step(slurm_sh, site, f"{rate}mbit"), step(slurm_sh, site, f"{2 * rate}mbit")
        what = next(each for each in slow["what_ifs"] if each["name"] == "bandwidth-x2")
        errors.append(what["step_ns"] / fast["step_ns"] - 1)
        low, predicted, high = (what[name] / 1e6 for name in ("low_ns", "step_ns", "high_ns"))
        print(
            f"{rate} Mbit/s: {slow['step_ns'] / 1e6:.0f} ms a step; predicted for twice that: {predicted:.0f} ms "
            f"({low:.0f} to {high:.0f}); measured: {fast['step_ns'] / 1e6:.0f} ms, {errors[-1]:+.0%} off",
            flush=True,
        )
    print(f"mean error {mean(errors):+.1%} in {rounds} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=int, default=20, help="of the slow link, in 10⁶ bit/s")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-link-") as folder:
        slurm, keeper = start(Path(folder) / "c", ())
        try:
            runs = Path(folder) / "runs"
            runs.mkdir()
            compare(slurm, runs, asked.rounds, asked.rate)
        finally:
            keeper.close()


if __name__ == "__main__":
    main()
