"""How often a lesson's answer is the expected one, from real trainings on this machine's CPU.

    python benchmarks/bench_lessons.py [--rounds 5] [--only NAME…]

Each round trains a lesson's pair anew and asks for the answer. For each relation of the lesson it says in how many of
the rounds the outcome was the expected one; those that compare times are marked. Anything else that runs on the machine
is in these numbers, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.study.lessons import load_lesson
from tests.study.test_lessons_local import OUTCOMES, TIMED, lesson


def answers(runs: Path, name: str, rounds: int) -> Iterator[list[str]]:
    """The outcomes of a lesson's relations, of each round that gave an answer."""
    for number in range(rounds):
        begun = lesson(runs, name, *(["--again"] if number else []))
        done = lesson(runs, name, "--answer", "--json")
        if begun.returncode or done.returncode:
            print(f"{name}: round {number + 1} gave no answer: {(begun.stderr + done.stderr)[-300:]}")
            continue
        yield [each["outcome"] for each in json.loads(done.stdout)["answers"]]


def measure(name: str, rounds: int) -> None:
    """A line for each relation of the lesson."""
    asked = load_lesson(name)
    relations = (asked.on_cpu and asked.on_cpu.relations) or asked.relations
    with tempfile.TemporaryDirectory() as folder:
        found = list(answers(Path(folder), name, rounds))
    for number, (relation, expected) in enumerate(zip(relations, OUTCOMES[name], strict=True)):
        outcomes = Counter(each[number] for each in found)
        timed = "times" if TIMED.search(relation.holds) else "counts"
        others = ", ".join(f"{count} × {outcome}" for outcome, count in outcomes.items() if outcome != expected.value)
        print(f"{name}  {timed:<6}  {outcomes[expected.value]} of {rounds} {expected.value}"
              f"{f' ({others})' if others else ''}: {relation.says}", flush=True)  # fmt: skip


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=sorted(OUTCOMES), choices=sorted(OUTCOMES))
    asked = parser.parse_args(words)
    for name in asked.only:
        measure(name, asked.rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
