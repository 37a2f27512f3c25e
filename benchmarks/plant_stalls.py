"""Plants a stall into the copy of a training: one more line at a random place that runs in each step.

The line calls nothing from another file of the user, so it is the innermost line of the user's code while the training
waits. It appends to a file what each stall really took: `<end, Unix ns> <ns>`.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from pathlib import Path

from own_trainings import SCRIPTS, TRAININGS, Training, body_of, statements

KINDS = ("sleep", "python", "file", "lock", "wait", "operators", "all-reduce")
FLOATS_PER_MS = 100_000  # that gloo reduces between two processes of one machine, about


@dataclass(frozen=True)
class Spot:
    """Where a line can be planted: it becomes this line of the file. times: how often it runs per step."""

    file: str
    line: int
    indent: int
    times: int


@dataclass(frozen=True)
class Plant:
    """A stall of `ms` each time that it runs. rank: None for all ranks. every: in every k-th time only."""

    training: str
    spot: Spot
    kind: str
    rank: int | None
    ms: float
    every: int = 1

    @property
    def name(self) -> str:
        """Short, and fit for a file's name."""
        where = f"{Path(self.spot.file).stem}-{self.spot.line}"
        who = "all" if self.rank is None else f"rank{self.rank}"
        return f"{self.training}-{where}-{self.kind}-{self.ms:g}ms-{who}" + f"-every{self.every}" * (self.every > 1)


def spots(training: Training, folder: Path = SCRIPTS) -> list[Spot]:
    """All places of a training where a line can be planted, in the order of its files and lines."""
    found: set[Spot] = set()
    for place in training.places:
        tree = ast.parse((folder / place.file).read_text(encoding="utf-8"))
        for statement, last in statements(body_of(tree, place)):
            found.add(Spot(place.file, statement.lineno, statement.col_offset, place.times))
            if last and not isinstance(statement, ast.Return) and statement.end_lineno is not None:
                found.add(Spot(place.file, statement.end_lineno + 1, statement.col_offset, place.times))
    return sorted(found, key=lambda spot: (spot.file, spot.line, -spot.indent))


def draw(
    training: Training, seed: int, kinds: tuple[str, ...] = KINDS, sizes_ms: tuple[float, float] = (15, 40)
) -> Plant:
    """A stall of random kind, place, rank and size; the same for the same seed.

    Operators are added on one rank: on all of them nothing tells them from the work of the program.
    """
    dice = random.Random(f"{training.name} {seed}")
    spot = dice.choice(spots(training))
    kind = dice.choice([kind for kind in kinds if kind != "all-reduce" or training.ranks > 1])
    everywhere = kind == "all-reduce" or (dice.random() < 0.2 and kind != "operators")
    every = dice.choice((1, 1, 1, 1, 3))
    rank = None if everywhere and training.ranks > 1 else dice.randrange(training.ranks)
    return Plant(training.name, spot, kind, rank, round(dice.uniform(*sizes_ms) * every / spot.times, 1), every)


def planted(text: str, plant: Plant, records: Path, large_file: Path) -> str:
    """The file's text with the stall in line `plant.spot.line`.

    records: each rank appends what its stalls took to `<records>.rank<R>`. large_file: what the kind `file` reads.
    """
    lines = text.splitlines(keepends=True)
    lines.insert(plant.spot.line - 1, " " * plant.spot.indent + statement(plant, records, large_file) + "\n")
    return "".join(lines)


def statement(plant: Plant, records: Path, large_file: Path) -> str:
    """The planted line."""
    rank = "__import__('os').environ.get('RANK', '0')"
    conditions = [] if plant.rank is None else [f"{rank} == '{plant.rank}'"]
    if plant.every > 1:
        turn = "next(globals().setdefault('_turns', __import__('itertools').count()))"
        conditions.append(f"{turn} % {plant.every} == {plant.every - 1}")
    until = f"_begin + {round(plant.ms * 1e6)}"
    parts = [
        f"if {' and '.join(conditions) or 'True'}: import time as _time, threading as _threading, torch as _torch",
        *_prepared(plant),
        "_begin = _time.perf_counter_ns()",
        *_waiting(plant, until, large_file),
        "_spent = _time.perf_counter_ns() - _begin",
        f"open({str(records)!r} + '.rank' + {rank}, 'a').write(f'{{_time.time_ns()}} {{_spent}}\\n')",
    ]
    return "; ".join(parts)


def _prepared(plant: Plant) -> list[str]:
    """What is no part of the stall, once in a training."""
    if plant.kind != "all-reduce":
        return []
    zeros = f"_torch.zeros({round(plant.ms * FLOATS_PER_MS)})"
    return ["_sums = globals().setdefault('_sums', [])", f"_sums or _sums.append({zeros})"]


def _waiting(plant: Plant, until: str, large_file: Path) -> list[str]:
    seconds = f"{plant.ms / 1000:g}"
    timer = "_threading.Timer({}, {}).start()"
    ways = {
        "sleep": [f"_time.sleep({seconds})"],
        "python": [_repeat("sum(range(100))", until)],
        "file": [
            f"_file = open({str(large_file)!r}, 'rb', buffering=0)",
            _repeat("_file.read(1 << 20) or _file.seek(0)", until),
        ],
        "lock": [
            "_lock = _threading.Lock()",
            "_lock.acquire()",
            timer.format(seconds, "_lock.release"),
            "_lock.acquire()",
        ],
        "wait": [
            "_future = _torch.futures.Future()",
            timer.format(seconds, "lambda: _future.set_result(None)"),
            "_future.wait()",
        ],
        "operators": ["_matrix = _torch.ones(192, 192)", _repeat("_torch.mm(_matrix, _matrix)", until)],
        "all-reduce": ["_torch.distributed.all_reduce(_sums[0])"],
    }
    return ways[plant.kind]


def _repeat(work: str, until: str) -> str:
    """An expression that does the work until it is that late."""
    clock = f"iter(lambda: ({work}, _time.perf_counter_ns())[1], None)"
    return f"next(None for _now in {clock} if _now > {until})"


def plant_into(folder: Path, plant: Plant, records: Path, large_file: Path) -> Path:
    """Change the file in `folder`, a copy of the scripts; returns it."""
    file = folder / plant.spot.file
    file.write_text(planted(file.read_text(encoding="utf-8"), plant, records, large_file), encoding="utf-8")
    return file


if __name__ == "__main__":
    for each in TRAININGS.values():
        print(each.name, *(f"{spot.file}:{spot.line}" for spot in spots(each)))
