"""extra-compute: matrix products that the model does not need, on the device that trains."""

from __future__ import annotations

import time

import torch

from exercises.utils.faults.target import Target
from harness.common.faults import Fault

# Small enough for a fine measure: a millisecond or less on one core, and on a GPU.
SIZE = {"cpu": 192, "cuda": 2048}
CALIBRATED_WITH = 50  # products


def inject(fault: Fault, target: Target) -> None:
    """Multiply in the step's first forward: on the CPU until the time is over, on a GPU a number of times."""
    if target.device.type == "cuda":
        _Queued(fault, target).start()
        return
    multiply = _Products(target.device)

    def compute() -> None:
        end_ns = time.perf_counter_ns() + fault.ns()
        while time.perf_counter_ns() < end_ns:
            multiply(1)

    multiply(CALIBRATED_WITH)  # the first products are slow, and would overrun
    target.when_due("forward", fault, compute)


class _Queued:
    """Products that a GPU does later than they are launched: their time is read when a later step begins."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._fault, self._target = fault, target
        self._multiply = _Products(target.device)
        self._count = 0
        self._running: list[tuple[int, int, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Calibrate, then compute in each step that is due."""
        self._timed(CALIBRATED_WITH)  # the first products are slow
        begin, end = self._timed(CALIBRATED_WITH)
        end.synchronize()
        each_ms = begin.elapsed_time(end) / CALIBRATED_WITH
        self._count = max(1, round(self._fault.ns() / 1e6 / each_ms))
        self._target.moments.at("forward", self._compute)
        self._target.moments.at_begin(self._record)
        self._target.until.callback(self._finish)

    def _compute(self) -> None:
        step = self._target.moments.step
        if self._fault.due(step):
            self._running.append((step, time.time_ns(), *self._timed(self._count)))

    def _timed(self, count: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        self._multiply(count)
        end.record()
        return begin, end

    def _record(self) -> None:
        while self._running and self._running[0][3].query():  # type: ignore[no-untyped-call]
            step, unix_ns, begin, end = self._running.pop(0)
            self._target.record(self._fault, step, round(begin.elapsed_time(end) * 1e6), unix_ns)

    def _finish(self) -> None:
        torch.cuda.synchronize()
        self._record()


class _Products:
    """Multiplies two square matrices, again and again into the same third."""

    def __init__(self, device: torch.device) -> None:
        shape = (SIZE[device.type],) * 2
        self._left, self._right, self._result = (torch.ones(shape, device=device) for _ in range(3))

    def __call__(self, count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                torch.mm(self._left, self._right, out=self._result)
