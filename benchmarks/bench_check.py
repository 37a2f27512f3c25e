"""How often `slurm.sh check` is wrong: a command against itself, and against itself with +5 % and +10 % of a step.

    python benchmarks/bench_check.py --keep FOLDER --minutes 30          # make trainings on this machine as it is
    python benchmarks/bench_check.py --keep FOLDER --minutes 30 --busy   # beside one that uses a core now and then
    python benchmarks/bench_check.py --keep FOLDER                       # the numbers of docs/studies.md
    python benchmarks/bench_check.py --keep FOLDER --simulate            # runs that differ by a known amount instead

A later start with the same folder goes on where the earlier one stopped. A comparison takes the trainings of as many
rounds in a row as an arm has runs. Those that begin at different rounds share trainings: the table also says how many
share none. Where A and B are the same command, each block is taken both as A B B A and as B A A B. Anything else that
runs on the machine is in these numbers, too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
from check_pool import KINDS, Trained, kept, make, neighbour

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.analysis.statistics import Sample
from harness.compare.arms import Arm
from harness.compare.comparison import bootstrap_ratio, compare_arms
from harness.compare.verdict import ChangeVerdict, Threshold

ALLOWED = Threshold(one_sided=True)
RUNS = (2, 3, 4, 6, 8)
SAME = ("healthy", "healthy again")
PAIRS = {"the same command": SAME, "+5 %": ("healthy", "+5 %"), "+10 %": ("healthy", "+10 %")}
HEAD = """
| machine | B against A | runs of each | comparisons (apart) | worse | cannot tell | same or better |
|---|---|---|---|---|---|---|"""
SIMULATED, DEVIATIONS = 4000, (0.01, 0.02, 0.03, 0.05)
CONDITIONS = ("as it is", "busy")
Round = dict[str, Trained]


def whole_rounds(pool: Sequence[Trained]) -> list[Round]:
    """The rounds of which no training is missing, in order."""
    rounds: dict[int, Round] = {}
    for each in pool:
        rounds.setdefault(each.round, {})[each.kind] = each
    return [rounds[number] for number in sorted(rounds) if len(rounds[number]) == len(KINDS)]


def verdicts(rounds: Sequence[Round], arms: tuple[str, str], runs: int, apart: bool) -> Iterator[ChangeVerdict]:
    """Of every so many rounds in a row; apart: only of those that share none."""
    blocks = -(-runs // 2)
    turns = list(product((False, True), repeat=blocks)) if arms == SAME and not apart else [(False,) * blocks]
    for first in range(0, len(rounds) - runs + 1, runs if apart else 1):
        for turned in turns:
            a, b = [], []
            for i, found in enumerate(rounds[first : first + runs]):
                of_a, of_b = reversed(arms) if turned[i // 2] else arms
                a.append(Sample(found[of_a].median_ns, i // 2))
                b.append(Sample(found[of_b].median_ns, i // 2))
            yield compare_arms("step_ns", Arm("A", a), Arm("B", b), ALLOWED).verdict


def rows(rounds: Sequence[Round], condition: str, apart: bool = False) -> Iterator[str]:
    """One row for each pair of kinds and number of runs."""
    for name, arms in PAIRS.items():
        for runs in RUNS:
            found = Counter(verdicts(rounds, arms, runs, apart))
            total = sum(found.values())
            if total:
                counts = (
                    found[ChangeVerdict.WORSE],
                    found[ChangeVerdict.UNKNOWN],
                    found[ChangeVerdict.SAME] + found[ChangeVerdict.BETTER],
                )
                shares = " | ".join(f"{100 * n / total:.1f} %" for n in counts)
                yield f"| {condition} | {name} | {runs} | {total} ({len(rounds) // runs}) | {shares} |"


def spread(rounds: Sequence[Round], condition: str) -> str:
    """How much trainings vary, what was injected, and what their steps alone would say."""
    healthy = [float(np.log(r[kind].median_ns)) for r in rounds for kind in SAME]
    usual = float(np.exp(median(healthy)))
    near = [float(np.log(r[SAME[0]].median_ns / r[SAME[1]].median_ns)) for r in rounds]
    by_steps = [bootstrap_ratio(*(np.array(r[kind].steps_ns) for kind in SAME)) for r in rounds]
    called = sum(low > 1 or high < 1 for low, high in by_steps)
    return (
        f"{condition}: {len(rounds)} rounds; healthy step {usual / 1e6:.1f} ms, one training differs from the next by "
        f"{100 * stdev(near) / 2**0.5:.1f} % (inside of a round) or {100 * stdev(healthy):.1f} % (of all); "
        f"{', '.join(_slower(rounds, kind, usual) for kind, share in KINDS.items() if share)}; "
        f"by the steps of one training each, {called} of {len(rounds)} pairs of the same command differ"
    )


def _slower(rounds: Sequence[Round], kind: str, usual_ns: float) -> str:
    """How long a kind of training computed more in each step, and how much longer its step took."""
    more = median(r[kind].injected_ns for r in rounds) / usual_ns
    took = exp(fmean(log(r[kind].median_ns / r["healthy"].median_ns) for r in rounds)) - 1
    return f"{kind} computed {100 * more:.1f} % and took {100 * took:.1f} % more"


def simulated(deviation: float) -> list[Round]:
    """Trainings that differ by `deviation` while the machine drifts by a tenth of that from one to the next."""
    chance, drift, rounds = random.Random(1), 0.0, []
    for number in range(SIMULATED):
        made: Round = {}
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            drift += chance.gauss(0, deviation / 10)
            ns = 1e8 * exp(drift + chance.gauss(0, deviation)) * (1 + KINDS[kind])
            made[kind] = Trained(number, kind, 0, (ns,), 0)
        rounds.append(made)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, metavar="FOLDER", help="where the measurements are kept")
    parser.add_argument("--minutes", type=float, default=0, help="make trainings for so long")
    parser.add_argument("--busy", action="store_true", help="while another program uses a core now and then")
    parser.add_argument("--simulate", action="store_true", help="no trainings: numbers drawn at random")
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    if asked.simulate:
        print(HEAD)
        for deviation in DEVIATIONS:
            print("\n".join(rows(simulated(deviation), f"simulated, {100 * deviation:.0f} %", apart=True)))
        return
    if asked.minutes:
        with neighbour() if asked.busy else nullcontext():
            make(asked.keep / CONDITIONS[asked.busy], time.monotonic() + 60 * asked.minutes, asked.ranks)
    pools = {name: rounds for name in CONDITIONS if len(rounds := whole_rounds(kept(asked.keep / name))) > 1}
    for name, rounds in pools.items():
        print(spread(rounds, name))
    print(HEAD)
    for name, rounds in pools.items():
        print("\n".join(rows(rounds, name)))


if __name__ == "__main__":
    main()
