"""When a training changed its pace, on which rank: what is found of changes at known steps, and in steady trainings.

    python benchmarks/bench_pace.py [--simulated 300] [--seed 3] [--real 60 --steady 100 --out OUT]

Simulated trainings have noise of many kinds (pace_series.py). The starts of their collectives are known or not, as of a
backend that records them or not. Real ones are two ranks of tests/own/scripts/plain_ddp.py (pace_runs.py), which take
20 to 30 s each. If a machine is used by other programs, real trainings do change their pace: changes that the waiting
for cores explains are counted apart, and so are those of the machine itself, by at least half of which the same work
took longer or shorter.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from pace_runs import TRAINING, Run, drawn_run, machine_ratio, made
from pace_series import PHASES, Planted, drawn_noise, simulated

from harness.analysis.pace import WAITING, DetectedChange, changes, own_times
from harness.analysis.summary import PaceChange

SIZES = (0.08, 0.1, 0.15, 0.2, 0.3, 0.6)
LENGTHS, RANKS = (150, 300, 1000), (1, 2, 4, 8)
NEAR, RIGHT = 10, 2  # steps from the planted one: it is found; it is right
HEAD = ("", "planted", "found", "of these within ± 2", "of these right ranks", "step and ranks right, of the planted",
        "steps off: median / 95 % / most", "other changes")  # fmt: skip


@dataclass
class Row:
    """Counts of one group of trainings. errors: steps between the planted onset and the one that was found."""

    planted: int = 0
    found: int = 0
    ranks: int = 0
    both: int = 0
    others: int = 0
    errors: list[int] = field(default_factory=list)

    def cells(self) -> Iterator[str]:
        """As the table shows it."""
        near = sum(error <= RIGHT for error in self.errors)
        quantiles = [f"{np.quantile(self.errors, share):.0f}" if self.errors else "–" for share in (0.5, 0.95, 1)]
        of = self.found
        yield from (str(self.planted), _share(of, self.planted), _share(near, of), _share(self.ranks, of))
        yield from (_share(self.both, self.planted), " / ".join(quantiles), str(self.others))


@dataclass(frozen=True)
class Said:
    """A change as it was found. ranks: empty if nobody was named. grown, machine: by how much longer a step, and the
    same work, took, as a share."""

    step: int
    ranks: tuple[int, ...]
    by_cores: bool = False
    by_machine: bool = False
    grown: float = 0.0
    machine: float = 0.0

    @property
    def explained(self) -> bool:
        """The training itself did not change."""
        return self.by_cores or self.by_machine


def judge(row: Row, said: Iterable[Said], step: int, truth: set[int]) -> None:
    """Count what was said of a training that changed at `step` on the ranks `truth` (empty: cannot be known)."""
    row.planted += 1
    near = [each for each in said if abs(each.step - step) <= NEAR]
    row.others += sum(each not in near and not each.explained for each in said)
    if not near:
        return
    first = min(near, key=lambda each: abs(each.step - step))
    error, right = abs(first.step - step), set(first.ranks) == truth
    row.found += 1
    row.errors.append(error)
    row.ranks += right
    row.both += right and error <= RIGHT


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} %" if of else "–"


def table(rows: dict[str, Row]) -> Iterator[str]:
    """As Markdown."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    yield from (f"| {name} | {' | '.join(row.cells())} |" for name, row in rows.items())


# -- simulated -----------------------------------------------------------------------------------------------------


def simulated_found(
    planted: Planted | None, ranks: int, steps: int, dice: np.random.Generator, *, starts: bool
) -> list[DetectedChange]:
    """What is found in one simulated training. starts: the starts of its collectives are known."""
    series = simulated(ranks, steps, drawn_noise(dice), planted, dice)
    waiting = WAITING if ranks > 1 else ()
    return changes(series.step, own_times(series.step, series.phases, waiting, told=series.own if starts else None))


def simulate(count: int, seed: int, *, starts: bool) -> Iterator[str]:
    """As many trainings that change, and as many steady ones. starts: of `simulated_found`."""
    dice = np.random.default_rng(seed)
    rows: dict[str, Row] = defaultdict(Row)
    for number in range(count):
        ranks, steps, size = int(dice.choice(RANKS)), int(dice.choice(LENGTHS)), SIZES[number % len(SIZES)]
        rank = None if dice.random() < 0.2 else int(dice.integers(ranks))
        phase = str(dice.choice(list(PHASES)))
        planted = Planted(int(dice.integers(40, steps - 20)), size, phase, rank)
        found = simulated_found(planted, ranks, steps, dice, starts=starts)
        unknown = phase in WAITING and ranks > 1 and not starts
        truth = set() if unknown else set(range(ranks)) if rank is None else {rank}
        said = [Said(x.step, x.ranks if x.named else ()) for x in found]
        judge(rows[f"{size:.0%}"], said, planted.step, truth)
    yield from table({name: rows[name] for name in (f"{size:.0%}" for size in SIZES)})
    false: dict[int, int] = defaultdict(int)
    for number in range(count):
        steps = LENGTHS[number % len(LENGTHS)]
        false[steps] += bool(simulated_found(None, int(dice.choice(RANKS)), steps, dice, starts=starts))
    each = ", ".join(f"{false[steps]} of {steps} steps" for steps in LENGTHS)
    yield f"\nsteady trainings with a change: {sum(false.values())} of {count} ({each})"


# -- real ----------------------------------------------------------------------------------------------------------


def real(planted: int, steady: int, out: Path, seed: int, batch_size: int) -> Iterator[str]:
    """Trainings that change, and steady ones, in turns."""
    rows: dict[str, Row] = defaultdict(Row)
    false = by_cores = by_machine = 0
    for number in range(max(planted, steady)):
        if number < planted:
            run = drawn_run(number, seed, steady=False)
            said = _said_of(run, out, batch_size)
            truth = set(range(TRAINING.ranks)) if run.rank is None else {run.rank}
            assert run.step is not None
            for name in ("all", run.phase):
                judge(rows[name], said, run.step, truth)
            yield f"{run.name}: {_told(said)}"
        if number < steady:
            run = drawn_run(number, seed, steady=True)
            said = _said_of(run, out, batch_size)
            false += any(not each.explained for each in said)
            by_cores += bool(said) and all(each.by_cores for each in said)
            by_machine += bool(said) and all(each.by_machine for each in said)
            yield f"{run.name}: {_told(said)}"
    yield ""
    yield from table(rows)
    yield (f"\nsteady trainings with a change: {false} of {steady}; "
           f"with changes that the waiting for cores explains alone: {by_cores}, "
           f"that are the machine's own: {by_machine}")  # fmt: skip


def _said_of(run: Run, out: Path, batch_size: int) -> list[Said]:
    return [_said(out / run.name, change) for change in made(run, out, batch_size)]


def _said(folder: Path, change: PaceChange) -> Said:
    grown, machine = change.ratio - 1, machine_ratio(folder, change) - 1
    return Said(
        change.step,
        tuple(change.ranks) if change.named else (),
        by_cores="for a core" in change.evidence,
        by_machine=grown * machine > 0 and abs(machine) >= abs(grown) / 2,
        grown=grown,
        machine=machine,
    )


def _told(said: Iterable[Said]) -> str:
    each = [
        f"step {x.step}, ranks {x.ranks or 'not known'}, {x.grown:+.0%}, "
        f"the machine {x.machine:+.0%}{', cores' * x.by_cores}"
        for x in said
    ]
    return "; ".join(each) or "no change"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=int, default=300, help="trainings that change, and as many steady ones")
    parser.add_argument("--real", type=int, default=0, help="real trainings that change")
    parser.add_argument("--steady", type=int, default=0, help="real trainings that do not")
    parser.add_argument("--out", type=Path, default=Path("pace-runs"), help="where the real ones are kept")
    parser.add_argument("--batch-size", type=int, default=128, help="of the real ones, per rank")
    parser.add_argument("--seed", type=int, default=3)
    asked = parser.parse_args()
    for starts in (True, False) if asked.simulated else ():
        print(f"\nsimulated, the starts of collectives are {'known' if starts else 'not known'}\n")
        for line in simulate(asked.simulated, asked.seed, starts=starts):
            print(line, flush=True)
    if not asked.real and not asked.steady:
        return
    for line in real(asked.real, asked.steady, asked.out.resolve(), asked.seed, asked.batch_size):
        print(line, flush=True)


if __name__ == "__main__":
    main()
