"""What is said of somebody's own training: the line, the ranks and the time of a planted stall.

    python benchmarks/bench_own.py OUT [--cases 100] [--healthy 40] [--only NAME…] [--seed 1]

Stalls of seven kinds are planted at random lines of unchanged trainings (plant_stalls.py), each run with
`slurm.sh run -- …` and `slurm.sh report --json`. Healthy runs show false findings, and what the observer costs. A later
start with the same folder goes on where the earlier one stopped. Anything else that runs on the machine is in these
numbers, too.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from own_runs import Bench, Case, Said, described
from own_trainings import TRAININGS
from own_verdicts import CROWDED, CaseVerdict, false_findings, of_ours, place_of
from plant_stalls import KINDS, draw

RIGHT: dict[str, Callable[[CaseVerdict], bool]] = {
    "a cause is named": lambda verdict: verdict.cause is not None,
    "right line first": lambda verdict: verdict.line,
    "right ranks": lambda verdict: verdict.ranks,
    "lost time within 20 %": lambda verdict: verdict.lost_is_close,
}
CHOSEN = ("plain_ddp", "accelerate_loop", "transformers_trainer", "lightning_ddp")


class Done(NamedTuple):
    """A case with what was said of it."""

    case: Case
    ours: Said
    alone: Said


def cases(names: Sequence[str], planted: int, healthy: int, seed: int) -> Iterator[Case]:
    """The trainings in turn; a part of the cases is a sample of all."""
    for number in range(max(planted, healthy)):
        name = names[number % len(names)]
        if number < planted:
            yield Case(name, draw(TRAININGS[name], seed * 10_000 + number))
        if number < healthy:
            yield Case(name, None, number)


def told(done: Done) -> str:
    """A case in one line."""
    case, said = done.case, done.ours
    if "failed" in said:
        return f"{case.name}: FAILED {said['failed']}"
    if case.plant is None:
        found = "; ".join(map(_finding, false_findings(case, said)))
        return f"{case.name}: {found or 'nothing'}"
    verdict = of_ours(case, said)
    marks = "".join(
        sign if right else "-"
        for sign, right in (("L", verdict.line), ("R", verdict.ranks), ("T", verdict.lost_is_close))
    )
    share = "" if verdict.lost is None else f", {verdict.lost:.2f} of {said['planted_ns'] / 1e6:.1f} ms"
    return f"{case.name}: {marks} {verdict.cause} at {verdict.place}{share}"


def tables(runs: Sequence[Done]) -> Iterator[str]:
    """All of them."""
    planted = [done for done in runs if done.case.plant is not None]
    healthy = [done for done in runs if done.case.plant is None]
    yield f"{len(planted)} planted stalls, {len(healthy)} healthy runs"
    yield "\n| of the planted stalls | slurm.sh run |\n|---|---|"
    ours = [of_ours(done.case, done.ours) for done in planted]
    for what, right in RIGHT.items():
        yield f"| {what} | {_of(map(right, ours))} |"
    yield from _by("kind", [str(done.case.plant.kind) for done in planted if done.case.plant], ours)
    yield from _by("training", [done.case.training for done in planted], ours)
    yield from _false(healthy)
    yield from _overhead(healthy)


def _of(right: Iterable[bool]) -> str:
    each = list(right)
    return f"{sum(each)} of {len(each)}" if each else "–"


def _finding(found: Said) -> str:
    where = place_of(found)
    at = "" if where is None else f" at {Path(where['file']).name}:{where['line']}"
    return f"{found['cause']} {found['lost_ns'] / 1e6:.1f} ms{at}"


def _by(what: str, names: Sequence[str], verdicts: Sequence[CaseVerdict]) -> Iterator[str]:
    yield (
        f"\n| {what} | right line | right ranks | lost within 20 % | lost, said / planted (median) | causes |\n"
        "|---|---|---|---|---|---|"
    )
    for name in sorted(set(names), key=lambda name: (KINDS.index(name) if name in KINDS else 0, name)):
        own = [verdict for each, verdict in zip(names, verdicts, strict=True) if each == name]
        lost = [verdict.lost for verdict in own if verdict.lost is not None]
        causes = ", ".join(f"{cause} {count}" for cause, count in Counter(v.cause for v in own).most_common())
        yield (
            f"| {name} | {_of(v.line for v in own)} | {_of(v.ranks for v in own)} "
            f"| {_of(v.lost_is_close for v in own)} | {f'{median(lost):.2f}' if lost else '–'} | {causes} |"
        )


def _false(healthy: Sequence[Done]) -> Iterator[str]:
    found = [(done.case.name, list(false_findings(done.case, done.ours))) for done in healthy]
    yield f"\nhealthy runs with a false finding: {sum(bool(each) for _, each in found)} of {len(healthy)}"
    for name, each in found:
        yield from (f"  {name}: {_finding(one)}" for one in each)
    crowded = sum(any(one["cause"] in CROWDED for one in done.ours.get("findings", [])) for done in healthy)
    yield f"(cores were shared in {crowded} of them)"


def _overhead(healthy: Sequence[Done]) -> Iterator[str]:
    yield "\n| a step of the healthy runs | alone, ms | observed, outside of the window |\n|---|---|---|"
    for name in dict.fromkeys(done.case.training for done in healthy):
        own = [done for done in healthy if done.case.training == name]
        alone = _median(done.alone for done in own)
        observed = _median(done.ours for done in own)
        more = f"{observed / alone - 1:+.1%}" if alone and observed else "–"
        yield f"| {name} | {f'{alone / 1e6:.1f}' if alone else '–'} | {more} |"


def _median(said: Iterator[Said]) -> float | None:
    values = [each["own_step_ns"] for each in said if "own_step_ns" in each]
    return median(values) if values else None


def written(done: Done) -> dict[str, Any]:
    """A case with all that was said, for a closer look."""
    row = {**described(done.case), "told": told(done), "ours": done.ours, "alone": done.alone}
    if done.case.plant is not None and "failed" not in done.ours:
        row["verdict"] = asdict(of_ours(done.case, done.ours))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the runs are kept")
    parser.add_argument("--cases", type=int, default=100, help="planted stalls")
    parser.add_argument("--healthy", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=list(TRAININGS), default=list(CHOSEN))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--site", default="local")
    asked = parser.parse_args()
    bench = Bench(asked.out, asked.site)
    runs = []
    for case in cases(asked.only, asked.cases, asked.healthy, asked.seed):
        runs.append(
            Done(
                case,
                bench.kept(case, "ours", bench.ours),
                bench.kept(case, "alone", bench.alone) if case.plant is None else {},
            )
        )
        print(told(runs[-1]), flush=True)
    (asked.out / "cases.json").write_text(json.dumps([written(done) for done in runs], indent=1), encoding="utf-8")
    for each in tables(runs):
        print(each)


if __name__ == "__main__":
    main()
