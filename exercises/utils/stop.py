"""Stopping on SIGTERM at the same step on every rank.

If one rank ended alone, the others would hang in their next collective. So the first rank that gets the signal
writes the step at which all ranks stop into the process group's store, and every rank looks there before each step. A
store lookup is no collective, so a trace does not show it as communication.
"""

from __future__ import annotations

import faulthandler
import signal
from contextlib import suppress
from datetime import timedelta
from types import FrameType

import torch.distributed as dist

from exercises.utils.errors import SIGTERM_EXIT_CODE
from harness.observe.capture import first_said, meet

_SUBJECT = "stop-before-step"
_PATIENCE = timedelta(seconds=5)  # for a rank that has failed meanwhile, of the time in which traces are to be written
STACKS_S = 25.0  # a rank is killed after 30 s: by PyTorch's launcher, and by many a site


class StopRequest:
    """Whether training was asked to stop. Create it in the main thread, before all else."""

    def __init__(self) -> None:
        self._requested = False
        self._step: int | None = None
        self._left = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        if not self._requested:
            faulthandler.dump_traceback_later(STACKS_S, file=2)  # into the log: where it hung, if it did
        self._requested = True

    def before(self, step: int, lead: int = 1) -> bool:
        """True when every rank stops before `step`.

        `lead`: how many steps one rank can be ahead of another, which are the steps between two synchronisations. The
        common last step is so far ahead that no rank has passed it. Ranks leave together: the first one's process holds
        the store in which the others look.
        """
        if self._step is None:
            self._step = self._agree(step + lead)
        if self._step is None or step < self._step:
            return False
        if not self._left:
            self._left = True
            with suppress(dist.DistError):
                meet(_SUBJECT, _PATIENCE)
        return True

    def _agree(self, proposal: int) -> int | None:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return 0 if self._requested else None  # at once
        agreed = first_said(_SUBJECT, str(proposal) if self._requested else None)
        return None if agreed is None else int(agreed)

    @property
    def requested(self) -> bool:
        """True when training stops, or stopped, on request."""
        return self._requested or self._step is not None

    @property
    def exit_code(self) -> int:
        """The script's exit code: 143 when stopped, as a shell reports SIGTERM, else 0."""
        return SIGTERM_EXIT_CODE if self.requested else 0
