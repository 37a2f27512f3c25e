"""What an injector is given: the training's parts, its moments, and where to write what was injected."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from exercises.utils.faults.moments import Moment, Moments
from exercises.utils.faults.records import Lines
from harness.common.faults import Fault, FaultLine


@dataclass(frozen=True)
class Target:
    """A training on one rank.

    models: its modules, one per chunk of a pipeline. until: closed when the training ends.
    """

    rank: int
    device: torch.device
    run_dir: Path
    models: list[Any]
    moments: Moments
    lines: Lines
    until: ExitStack

    def when_due(self, moment: Moment, fault: Fault, action: Callable[[], None]) -> None:
        """Call `action` at `moment` of each step in which `fault` is due, and record how long it takes."""

        def due() -> None:
            if fault.due(self.moments.step):
                unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
                action()
                self.record(fault, self.moments.step, time.perf_counter_ns() - begin_ns, unix_ns)

        self.moments.at(moment, due)

    def once(self, moment: Moment, fault: Fault, action: Callable[[], None]) -> None:
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
