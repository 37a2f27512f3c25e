"""small-buckets: gradients travel in many small messages. A training asks for the size when it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from exercises.utils.faults.asked import find
from harness.common.faults import Fault

Usual = TypeVar("Usual", int, int | None)  # None: the framework's own


def setting(faults: Sequence[Fault], usual_bytes: Usual) -> int | Usual:
    """The size of a bucket of gradients in bytes; without the fault `usual_bytes`."""
    fault = find(faults, "small-buckets")
    return usual_bytes if fault is None else 1024 * fault.count("kb")
