"""When torch.compile compiles in this process: the forward pass at its first call, the backward pass in a thread of
autograd, and both again for other shapes. Knows no training.
"""

from __future__ import annotations

from typing import Any

from harness.common.run_folder.job_parts import COMPILATION
from harness.observe.heartbeat import PROGRESS


class Compilations:
    """The steps in which it compiled. Meanwhile that is what the rank is at."""

    def __init__(self, callbacks: Any) -> None:
        """callbacks: the module `torch._dynamo.callback`, whose older versions call without arguments."""
        self.steps: set[int] = set()
        self._phase: str | None = None
        callbacks.on_compile_start(self._begins)
        callbacks.on_compile_end(self._ends)

    def _begins(self, *_: object) -> None:
        self._phase = PROGRESS.phase
        PROGRESS.enters(COMPILATION)

    def _ends(self, *_: object) -> None:
        PROGRESS.enters(self._phase)
        self.steps.add(PROGRESS.step)
