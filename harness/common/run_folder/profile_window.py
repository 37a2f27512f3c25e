"""Which steps of a training are profiled: not the first ones, which allocate, tune kernels and start data workers.

Knows no profiler, and nothing of what a step does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

# nsys without CUDA starts recording at this range: --capture-range=nvtx --nvtx-capture=profiling_window
WINDOW_RANGE = "profiling_window"
MEMORY = "memory"  # in place of a phase: it is recorded who holds memory, and the step's time does not count
MEMORY_STEPS = 15  # the first ones, in which most of that is recorded


# Set for a training that nsys records by the clock: begin and end in Unix nanoseconds; end 0: to the training's end.
RECORDED_VARIABLE = "HARNESS_RECORDED_NS"


@dataclass(frozen=True)
class ProfileWindow:
    """Numbers of steps, in order: `skip`, `wait`, `warmup`, and `active`, which are recorded."""

    skip: int
    wait: int
    warmup: int
    active: int

    @property
    def start(self) -> int:
        """First recorded step."""
        return self.skip + self.wait + self.warmup

    @property
    def end(self) -> int:
        """First step after the recorded ones."""
        return self.start + self.active

    def phase(self, step: int) -> str:
        """`skip`, `wait`, `warmup`, `active` or `after`."""
        for name in ("skip", "wait", "warmup", "active"):
            steps: int = getattr(self, name)
            if step < steps:
                return name
            step -= steps
        return "after"


@dataclass(frozen=True)
class ClockWindow(ProfileWindow):
    """The steps that are recorded by the clock, whatever their number: in Unix nanoseconds; `end_ns` 0: no end."""

    begin_ns: int
    end_ns: int

    def phase(self, step: int) -> str:
        """`skip` before the recording, `active`, or `after`, of the step that ends now."""
        now = time.time_ns()
        return "skip" if now < self.begin_ns else "after" if 0 < self.end_ns < now else "active"


def as_recorded(window: ProfileWindow, environ: Mapping[str, str]) -> ProfileWindow:
    """The window, as the clock has it where nsys records by the clock."""
    times = environ.get(RECORDED_VARIABLE, "").split()
    if len(times) != 2 or not all(text.isdecimal() for text in times):
        return window
    return ClockWindow(**asdict(window), begin_ns=int(times[0]), end_ns=int(times[1]))


FINE_TUNING = ProfileWindow(skip=10, wait=1, warmup=5, active=20)


PRE_TRAINING = ProfileWindow(skip=3, wait=1, warmup=1, active=5)
