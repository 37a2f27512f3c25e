"""pageable: batches are copied to the GPU from memory that is not pinned, and the host waits for each copy."""

from __future__ import annotations

from collections.abc import Sequence

from exercises.utils.faults.request import find
from harness.common.faults import Fault


def setting(faults: Sequence[Fault], usual: bool) -> bool:
    """Whether batches are pinned and copied without waiting; without the fault `usual`."""
    return usual and find(faults, "pageable") is None
