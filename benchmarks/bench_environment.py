"""How often `check --which` names what makes a training slow, and how often it blames without a cause.

    python benchmarks/bench_environment.py --simulated 500
    python benchmarks/bench_environment.py OUT --real 8 [--seed 1]

Simulated: runs whose speed drifts and that differ by so much, twelve things, of which one, two, or two only together
cost 5 to 20 %; the judge and the halving are those of the command. Real: a small training on this machine, once for
each round: twelve wheels of toy packages in two environments, or eight variables, a sitecustomize among them.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path
from typing import NamedTuple

from environment_runs import real_rounds

from harness.analysis.statistics import Sample
from harness.compare.arms import Arm
from harness.compare.comparison import MOST_RUNS, USUAL_RUNS, Comparison, compare_arms
from harness.compare.verdict import ChangeVerdict, Threshold
from harness.study.check.halving import find_cause, most_checks, most_for_a_pair
from harness.study.check.series import block_of
from harness.study.check.which import runs_for, shared_loss

THINGS = 12
LIMIT = Threshold(0.05, one_sided=True)
KINDS = ("one", "two", "together", "none")


class Machine(NamedTuple):
    """Runs of it differ by a share, and it becomes slower and faster by a tenth from block to block."""

    deviation: float
    random: random.Random

    def check(self, cost: float, each: int) -> Comparison:
        """A against B, which takes `cost` times as long, from so many runs of each."""
        drift = [1 + 0.1 * self.random.random() for _ in range(MOST_RUNS)]
        a, b = (
            [Sample(drift[block_of(i)] * factor * self._noise(), block_of(i)) for i in range(each)]
            for factor in (1.0, cost)
        )
        return compare_arms("step_ns", Arm("A", a), Arm("B", b), LIMIT)

    def _noise(self) -> float:
        return exp(self.random.gauss(0, self.deviation))


def planted(kind: str, source: random.Random) -> tuple[dict[int, float], bool]:
    """What each thing costs, and whether they cost it only together."""
    number = {"one": 1, "none": 0}.get(kind, 2)
    things = source.sample(range(THINGS), number)
    return {thing: 1 + source.uniform(0.05, 0.2) for thing in things}, kind == "together"


def cost_of(chosen: Sequence[int], costs: dict[int, float], together: bool) -> float:
    if together:
        return max(costs.values()) if costs.keys() <= {*chosen} else 1.0
    found = 1.0
    for thing, cost in costs.items():
        found *= cost if thing in chosen else 1.0
    return found


def one_round(kind: str, machine: Machine) -> tuple[str, int]:
    """What came out, in a word, and the checks that it took."""
    costs, together = planted(kind, machine.random)
    total = machine.check(cost_of(range(THINGS), costs, together), USUAL_RUNS)
    if total.verdict is not ChangeVerdict.WORSE:
        return "not called worse", 1
    runs, checks = runs_for(total), [1]
    if runs is None:
        return "cannot tell", 1

    def loss(chosen: Sequence[int]) -> float | None:
        checks.append(1)
        _, share = shared_loss(
            lambda each: machine.check(cost_of(chosen, costs, together), each), total, max(runs, USUAL_RUNS)
        )
        if share is None:
            raise ArithmeticError
        return share

    try:
        found = find_cause(THINGS, loss)
    except ArithmeticError:
        return "cannot tell", len(checks)
    is_right = found.is_enough and {*found.all} <= costs.keys() and (not together or len(found.all) == len(costs))
    return "right" if costs and is_right else "wrong", len(checks)


def simulated(rounds: int, seed: int) -> Iterator[str]:
    yield f"{THINGS} things; at most {most_checks(THINGS)} checks, {most_for_a_pair(THINGS)} more for a pair"
    yield "| runs differ by | what is slow | right | wrong | cannot tell | not called worse | checks, mean and most |"
    yield "|---|---|---|---|---|---|---|"
    for deviation in (0.005, 0.01, 0.02, 0.03):
        for kind in KINDS:
            machine = Machine(deviation, random.Random(f"{seed} {deviation} {kind}"))
            said = [one_round(kind, machine) for _ in range(rounds)]
            counts, checks = Counter(word for word, _ in said), [number for word, number in said if word == "right"]
            shares = [
                f"{100 * counts[word] / rounds:.1f} %" for word in ("right", "wrong", "cannot tell", "not called worse")
            ]
            most = f"{sum(checks) / len(checks):.1f}, {max(checks)}" if checks else "–"
            yield f"| {100 * deviation:g} % | {kind} | {' | '.join(shares)} | {most} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder of the real runs, which are kept")
    parser.add_argument("--simulated", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--real", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.simulated:
        print("\n".join(simulated(asked.simulated, asked.seed)))
    for line in real_rounds(asked.out, asked.real, asked.seed) if asked.real else ():
        print(line, flush=True)


if __name__ == "__main__":
    main()
