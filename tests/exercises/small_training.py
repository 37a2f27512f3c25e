"""A training of one process with a model of a few numbers, as the loop of exercise 1 does it: for tests of faults."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from exercises.utils.arguments import TrainingArguments, parse_arguments
from exercises.utils.faults.inject import injected


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    exercise: ClassVar[int] = 1


class Tiny(torch.nn.Module):
    """A model like those of transformers: it returns an object with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)])

    def forward(self, batch: Any) -> Any:
        for layer in self.layers:
            batch = layer(batch)
        return SimpleNamespace(loss=batch.mean())


@dataclass(frozen=True)
class Training:
    arguments: Arguments
    loader: Any
    model: Any
    optimizer: Any


@dataclass
class Seen:
    """What a training left: its lines of faults, and per step how long each phase took."""

    lines: list[dict[str, Any]]
    steps: list[dict[str, int]]
    folder: Path

    def of(self, fault: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["fault"] == fault]

    def phase(self, name: str) -> list[int]:
        return [step[name] for step in self.steps]


def arguments(folder: Path, *faults: str, extra: tuple[str, ...] = ()) -> Arguments:
    words = [word for fault in faults for word in ("--fault", fault)]
    return parse_arguments(
        Arguments, "", argv=["--run-dir", str(folder), "--model", "m", "--device", "cpu", *words, *extra]
    )


def prepared(asked: Arguments, steps: int) -> Training:
    model = Tiny()
    return Training(asked, [torch.ones(4, 8)] * steps, model, torch.optim.SGD(model.parameters(), lr=0.01))


def train(folder: Path, *faults: str, steps: int = 6, after_step: Callable[[int], object] = lambda _step: None) -> Seen:
    """Train as exercise 1 does: one batch is one step."""
    training = prepared(arguments(folder, *faults), steps)
    seen = []
    with injected(training, training.model, training.optimizer) as faulty:
        for number, step in enumerate(loop(faulty)):
            seen.append(step)
            after_step(number)
    files = (folder / "faults").glob("rank*.jsonl")
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return Seen(lines, seen, folder)


def loop(training: Training) -> Iterator[dict[str, int]]:
    batches = iter(training.loader)
    for _ in range(len(training.loader)):
        marks = [time.perf_counter_ns()]
        batch = next(batches)
        marks.append(time.perf_counter_ns())
        loss = training.model(batch).loss
        marks.append(time.perf_counter_ns())
        loss.backward()
        marks.append(time.perf_counter_ns())
        training.optimizer.step()
        marks.append(time.perf_counter_ns())
        spent = [after - before for before, after in itertools.pairwise(marks)]
        yield dict(zip(("load", "forward", "backward", "optimizer"), spent, strict=True))
    assert next(batches, None) is None, "the epoch ends as it does without faults"
