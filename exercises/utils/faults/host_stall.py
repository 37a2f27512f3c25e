"""host-stall: the host thread sleeps inside a phase. On a GPU, kernels that were launched before continue."""

from __future__ import annotations

import time
from typing import cast

from exercises.utils.faults.moments import Moment
from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Sleep at the start of the phase."""
    target.when_due(cast(Moment, fault.values["in"]), fault, lambda: time.sleep(fault.ns() / 1e9))
