"""Which steps of a training are profiled: not the first ones, which allocate, tune kernels and start data workers.

Knows no profiler, and nothing of what a step does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

# nsys without CUDA starts recording at this range: --capture-range=nvtx --nvtx-capture=profiling_window
WINDOW_RANGE = "profiling_window"


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
        for name, steps in asdict(self).items():
            if step < steps:
                return str(name)
            step -= steps
        return "after"


FINE_TUNING = ProfileWindow(skip=10, wait=1, warmup=5, active=20)
PRE_TRAINING = ProfileWindow(skip=3, wait=1, warmup=1, active=5)
