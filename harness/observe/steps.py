"""From calls of an unchanged training to its steps: which call ends a step, and how its time splits into phases.

Knows no PyTorch: hooks.py tells it when a phase begins and ends, and it tells a listener about whole steps. What ends
a step, the first that there is: the optimizer's call (of several optimizers the one that closes the cycle); without an
optimizer the end of a backward pass; without that the forward pass of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
EVALUATION = "evaluation"  # the trained model, called in its eval mode and without gradients
GONE = 200  # calls of other optimizers, after which one that used to end the steps is used no more


@dataclass(frozen=True)
class StepDurations:
    """One step: from the end of the step before to its own. parts: nanoseconds by phase; what is in none is missing."""

    number: int
    unix_ns: int
    ns: int
    parts: dict[str, int]


class StepListener(Protocol):
    """Is told about steps and phases as they happen."""

    def step_begins(self, number: int) -> None:
        """The first phase of a step is about to begin. What the listener does here is in no step."""

    def phase_begins(self, phase: str) -> None:
        """A phase begins."""

    def phase_ends(self) -> None:
        """The innermost phase ends."""

    def step_ends(self, step_durations: StepDurations) -> None:
        """A step has ended. What the listener does here is in no step."""


@dataclass
class _Snapshot:
    """Where the step would end, if it turns out that it ended there."""

    at_ns: int
    parts: dict[str, int]


@dataclass
class StepState:
    """The state of one process. optimizers: how many optimizers the process has made so far."""

    listener: StepListener
    optimizers: Callable[[], int]
    clock: Callable[[], int] = time.perf_counter_ns
    ended_by: str | None = None  # OPTIMIZER, BACKWARD or FORWARD, once a step has ended
    number: int = 0
    _stack: list[str] = field(default_factory=list)
    _since_ns: int = 0
    _begin_ns: int = -1
    _parts: dict[str, int] = field(default_factory=dict)
    _open: bool = False
    _cycle: list[int] = field(default_factory=list)  # optimizers called in the first step
    _last: int | None = None  # the optimizer that ends the steps
    _known: set[int] = field(default_factory=set)
    _others: int = 0
    _pending: _Snapshot | None = None
    _in_backward: bool = False
    loaded_ns: int = 0  # by the last phases, as far as these loaded data
    _before_loading_ns: int = 0

    # -- phases -------------------------------------------------------------------------------------------------------

    def begin(self, phase: str) -> bool:
        """A phase begins; False: it is a part of another phase, and its end must not be told.

        Forward and backward inside the optimizer are those of a closure.
        """
        if self._stack and (self._stack[-1] != OPTIMIZER or phase == OPTIMIZER):
            return False
        if phase == FORWARD and self._pending is not None and not self._cycle:
            self._finish(FORWARD, self._pending)  # nobody asked for gradients of the pass before
        self._account()
        if not self._open:
            self._open = True
            self.listener.step_begins(self.number)
            now = self.clock()
            self._begin_ns += now - self._since_ns
            self._since_ns = now
        if phase == EVALUATION and self.loaded_ns:  # so is what was loaded for it
            self._parts[DATA] -= self.loaded_ns
            self._parts[EVALUATION] = self._parts.get(EVALUATION, 0) + self.loaded_ns
        self.loaded_ns *= phase == DATA
        self._before_loading_ns = self._parts.get(DATA, 0)
        self._stack.append(phase)
        self.listener.phase_begins(phase)
        return True

    @property
    def phase(self) -> str | None:
        """The innermost phase that is open."""
        return self._stack[-1] if self._stack else None

    def end(self) -> None:
        """The innermost phase ends."""
        self._account()
        if self._stack.pop() == DATA:
            self.loaded_ns += self._parts.get(DATA, 0) - self._before_loading_ns
        self.listener.phase_ends()

    def _account(self) -> None:
        now = self.clock()
        if self._begin_ns < 0:
            self._begin_ns = now
        elif self._stack:
            phase = self._stack[-1]
            self._parts[phase] = self._parts.get(phase, 0) + now - self._since_ns
        self._since_ns = now

    # -- what ends a step ---------------------------------------------------------------------------------------------

    def optimizer_begins(self, key: int) -> bool:
        """An optimizer is called; as `begin`. One that is called again begins the next step."""
        if self._stack:
            self._in_backward |= self._stack[-1] == BACKWARD
            return False
        if key in self._cycle and self._pending is not None:
            self._last = self._cycle[-1]
            self._finish(OPTIMIZER, self._pending)
        return self.begin(OPTIMIZER)

    def optimizer_ends(self, key: int, whole: bool = True) -> None:
        """Its call ends. whole: False if it only accumulated."""
        self.end()
        if not whole:
            return
        if self._last is None and self.optimizers() > 1:
            self._cycle.append(key)
            self._known.add(key)
            self._pending = _Snapshot(self.clock(), dict(self._parts))
            return
        if self._last is None or key not in self._known or self._others >= GONE:
            self._last = key  # a new one is called less often than those before
        self._known.add(key)
        if key == self._last:
            self._others = 0
            self._finish(OPTIMIZER)
        else:
            self._others += 1

    def backward_ends(self) -> None:
        """A backward pass ends, which ends a step if no optimizer is called after it."""
        self.end()
        if self._stack:
            return
        if self.ended_by in (None, FORWARD):
            self._pending = None if not self._cycle else self._pending
        if self._in_backward or not self.optimizers():
            self._finish(BACKWARD)

    def forward_ends(self, of_model: bool, graded: bool) -> None:
        """A forward pass ends. of_model: of the model, not of a loss; graded: gradients of it can be asked for."""
        self.end()
        if self._stack or not of_model or self.optimizers() or self.ended_by == BACKWARD:
            return
        if graded:
            self._pending = _Snapshot(self.clock(), dict(self._parts))
        else:
            self._finish(FORWARD)

    def close(self) -> None:
        """The script has ended: so has the step that was not known to be over."""
        if self._pending is not None:
            self._parts = self._pending.parts
            self._finish(OPTIMIZER if self._cycle else FORWARD, self._pending)

    def _finish(self, by: str, snapshot: _Snapshot | None = None) -> None:
        """The step ends now, or where it ended as it turns out now."""
        end_ns = self.clock() if snapshot is None else snapshot.at_ns
        parts = self._parts if snapshot is None else snapshot.parts
        rest = {} if snapshot is None else {k: ns - parts.get(k, 0) for k, ns in self._parts.items()}
        ago_ns = self.clock() - self._begin_ns
        step = StepDurations(self.number, time.time_ns() - ago_ns, end_ns - self._begin_ns, parts)
        self.ended_by, self._pending, self._cycle = by, None, []
        self._open, self.loaded_ns = False, 0
        self.number += 1
        self.listener.step_ends(step)
        self._parts = {name: ns for name, ns in rest.items() if ns > 0}
        self._begin_ns = self._since_ns = self.clock() if snapshot is None else end_ns
        if snapshot is not None and self._parts:
            self._open = True
            self.listener.step_begins(self.number)
