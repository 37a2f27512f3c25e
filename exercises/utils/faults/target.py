"""What an injector is given: the training's parts, its moments, the time it took per step, and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from exercises.utils.faults.moments import Moment, Moments
from harness.common.faults.fault import Fault, FaultLine, faults_file
from harness.observe.metrics import JsonLines


def lines_of(run_dir: Path, rank: int, until: ExitStack) -> JsonLines:
    """The records of one rank, which are closed with `until`."""
    lines = JsonLines(faults_file(run_dir, rank))
    until.callback(lines.close)
    return lines


@dataclass(frozen=True)
class FaultTarget:
    """A training on one rank. models: its modules, one per chunk of a pipeline. until: closed when the training
    ends."""

    rank: int
    device: torch.device
    run_dir: Path
    models: list[Any]
    moments: Moments
    lines: JsonLines
    until: ExitStack

    def when_due(self, moment: Moment, fault: Fault, action: Callable[[], object]) -> None:
        """Call `action` at `moment` of each step in which `fault` is due, and record how long it takes."""

        def due() -> None:
            if fault.due(self.moments.step):
                unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
                action()
                self.record(fault, self.moments.step, time.perf_counter_ns() - begin_ns, unix_ns)

        self.moments.at(moment, due)

    def once(self, moment: Moment, fault: Fault, action: Callable[[], object]) -> None:
        """Call `action` at `moment` of the fault's step, after recording it: perhaps nothing comes after."""

        def due() -> None:
            if fault.due(self.moments.step):
                if fault.concerns(self.rank):
                    self.record(fault, self.moments.step, 0, time.time_ns())
                action()

        self.moments.at(moment, due)

    def record(self, fault: Fault, step: int, ns: int, unix_ns: int) -> None:
        """Write that `fault` took `ns` from `step`, beginning at `unix_ns`."""
        self.lines.write(asdict(FaultLine(step, fault.name, self.rank, ns, unix_ns)))


class PerStep:
    """The sum of a step, which ends with its update. What comes between steps, such as a check, belongs to none."""

    def __init__(self, fault: Fault, target: FaultTarget) -> None:
        self._fault, self._target = fault, target
        self._sum_ns = 0
        self._open: tuple[int, int] | None = None  # the step and when it began
        target.moments.at_begin(self._begin)
        target.moments.at("updated", self._end)
        target.until.callback(self._end)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is done inside is the fault's."""
        begin_ns = time.perf_counter_ns()
        yield
        self._sum_ns += time.perf_counter_ns() - begin_ns

    def _begin(self) -> None:
        self._end()  # a step whose gradients accumulate has no update
        self._sum_ns = 0
        self._open = (self._target.moments.step, time.time_ns())

    def _end(self) -> None:
        if self._open is not None:
            step, unix_ns = self._open
            self._target.record(self._fault, step, self._sum_ns, unix_ns)
            self._open = None
