"""Is the diagnosis right? Faults are injected into real trainings on the CPU, each paired with a healthy run in turn.

    python benchmarks/bench_diagnosis.py --out runs.jsonl [--exercises 1 2 3] [--seeds 1 2] [--minutes 20]
    python benchmarks/bench_diagnosis.py --tables runs.jsonl

Each line of the output is one run: what was asked, what each rank lost by its own record, and what the report found.
A later start with the same output goes on where the earlier one stopped. The tables: causes asked against causes
found, lost time found against injected, findings in healthy runs, and steps predicted without the cause against the
healthy run beside it. Anything else that runs on the machine is in these numbers, too.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from diagnosis_runs import Record, observed

SEVERITIES = (0.15, 0.3, 0.6)  # of a healthy step
STEP_MS = {
    1: 60,
    2: 200,
    3: 320,
}  # of a healthy step on the machine of docs/diagnosis.md; sizes the faults only
TIMED = (
    "data-stall,ms={ms}{where}",
    "host-stall,ms={ms},in=forward{where}",
    "host-stall,ms={ms},in=backward{where}",
    "host-stall,ms={ms},in=optimizer{where}",
    "pause,ms={ms}{where}",
)
WHERE = ("", ",rank=1", ",rank=0,every=3")
OTHERS = {
    1: ("slow-link,ms=20,rank=1", "long-sequences,rank=1", "pinned-together", "gc,objects=100,every=2"),
    2: ("slow-link,ms=2,rank=1", "long-sequences,rank=0", "pinned-together"),
    3: ("slow-link,ms=10,rank=1", "pinned-together"),
}
LARGE = 0.1  # of the step: smaller faults are not counted


def faults(exercise: int) -> Iterator[str]:
    """Every fault of an exercise in every size; what hits every third step is three times as large."""
    for severity in SEVERITIES:
        for where in WHERE:
            factor = 3 if "every" in where else 1
            size = round(severity * factor * STEP_MS[exercise])
            yield from (text.format(ms=size, where=where) for text in TIMED)
            if "rank" in where:
                yield f"extra-compute,ms={size}{where}"
    yield from OTHERS[exercise]


def run(out: Path, exercises: Sequence[int], seeds: Sequence[int], minutes: float) -> None:
    """Make the runs that `out` does not have yet, healthy and faulty in turn."""
    until = time.monotonic() + 60 * minutes
    done = {_key(record) for record in read(out)}
    for seed in seeds:
        cases = [(exercise, fault) for exercise in exercises for fault in faults(exercise)]
        random.Random(seed).shuffle(cases)  # so that a part of them is a sample of all
        for number, (exercise, fault) in enumerate(cases):
            for asked in (None, fault):
                record = {"exercise": exercise, "seed": seed, "fault": asked, "pair": number}
                if _key(record) in done:
                    continue
                if time.monotonic() > until:
                    return
                record |= observed(exercise, seed, asked)
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                print(_line(record), flush=True)


def _key(record: Record) -> tuple[object, ...]:
    return record["exercise"], record["seed"], record["pair"], record["fault"]


def read(out: Path) -> list[Record]:
    """All runs so far."""
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def _line(record: Record) -> str:
    first = departures(record)[:1]
    found = (
        f"{first[0]['cause']} {first[0]['ranks']} {first[0]['lost_ns'] / 1e6:.1f} ms" if first else "nothing"
    )
    lost = injected_ns(record) / 1e6
    step = record["step_ns"] / 1e6
    return f"{record['exercise']} {record['fault']}: step {step:.1f} ms, injected {lost:.1f}, {found}"


def injected_ns(record: Record) -> float:
    """What a step lost: what its ranks lost at once, in a pipeline what its stages lost one after the other."""
    lost = record["injected_ns"].values()
    return sum(lost) if record["exercise"] == 3 else max(lost, default=0)


def departures(record: Record) -> list[Record]:
    """The findings that are no usual course of the program."""
    return [found for found in record["findings"] if not found["standing"]]


def tables(records: Sequence[Record]) -> Iterator[str]:
    """The lines of docs/diagnosis.md."""
    faulty = [record for record in records if record["fault"]]
    healthy = [record for record in records if not record["fault"]]
    large = [record for record in faulty if _share(record) >= LARGE]
    yield f"{len(faulty)} faulty runs, {len(large)} with a fault of at least 10 % of the step; {len(healthy)} healthy"
    yield from _confusion(large)
    yield from _lost(large)
    alarms = [record for record in healthy if departures(record)]
    yield f"findings in healthy runs: {len(alarms)} of {len(healthy)}"
    counted = Counter(found["cause"] for record in alarms for found in departures(record))
    yield from (f"  {cause}: {count}" for cause, count in counted.most_common())
    yield from _predicted(large, healthy)
    worst = max((record["error"] for record in records), default=0.0)
    yield f"largest self-replay error: {worst:.3%}"


def _share(record: Record) -> float:
    """The injected time over the step; where a fault records none, that it is large."""
    lost = injected_ns(record)
    return lost / record["step_ns"] if lost else 1.0


def _confusion(large: Sequence[Record]) -> Iterator[str]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    right = 0
    for record in large:
        first = next(iter(departures(record)), None)
        cause = record["fault"].split(",")[0]
        found[cause][first["cause"] if first else "nothing"] += 1
        right += first is not None and first["cause"] == cause and _place_is_right(record, first)
    yield f"cause and ranks right: {right} of {len(large)}"
    for cause, counts in found.items():
        yield f"  {cause}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _place_is_right(record: Record, found: Record) -> bool:
    asked = dict(word.split("=") for word in record["fault"].split(",")[1:])
    ranks = [int(asked["rank"])] if asked.get("rank", "all") != "all" else [0, 1]
    return bool(found["ranks"] == ranks and asked.get("in", found["phase"]) == found["phase"])


def _charged_ns(record: Record) -> float:
    """What the report charges to the injected cause."""
    cause = record["fault"].split(",")[0]
    return float(sum(found["lost_ns"] for found in departures(record) if found["cause"] == cause))


def _lost(large: Sequence[Record]) -> Iterator[str]:
    errors = []
    for record in large:
        injected, found = injected_ns(record), _charged_ns(record)
        if found and injected and record["fault"] != "pinned-together":
            errors.append((abs(found - injected) / injected, record["fault"]))
    if errors:
        within = sum(error <= 0.2 for error, _ in errors)
        yield (
            f"lost time within 20 % of what was injected: {within} of {len(errors)}; "
            f"median error {median(error for error, _ in errors):.1%}"
        )
        yield from _worst(errors)


def _predicted(large: Sequence[Record], healthy: Sequence[Record]) -> Iterator[str]:
    """The step without the first cause, beside the healthy run of the same pair."""
    beside = {(record["exercise"], record["seed"], record["pair"]): record["step_ns"] for record in healthy}
    errors = []
    for record in large:
        charged = _charged_ns(record)
        truth = beside.get((record["exercise"], record["seed"], record["pair"]))
        if charged and truth:
            predicted = record["step_ns"] - charged
            errors.append((abs(predicted - truth) / truth, record["fault"]))
    if errors:
        within = sum(error <= 0.1 for error, _ in errors)
        yield (
            f"step without the cause against the healthy run beside it: median error "
            f"{median(error for error, _ in errors):.1%}, within 10 % in {within} of {len(errors)}"
        )
        yield from _worst(errors)


def _worst(errors: list[tuple[float, str]]) -> Iterator[str]:
    yield from (f"  {error:.0%} off: {fault}" for error, fault in sorted(errors, reverse=True)[:5])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where the runs are kept, one JSON object a line")
    parser.add_argument("--tables", type=Path, help="print the tables of these runs")
    parser.add_argument("--exercises", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--minutes", type=float, default=1e6)
    asked = parser.parse_args()
    if asked.out is not None:
        run(asked.out, asked.exercises, asked.seeds, asked.minutes)
    for line in tables(read(asked.tables or asked.out)):
        print(line)


if __name__ == "__main__":
    main()
