"""small-buckets: gradients travel in many small messages. A training asks for the size when it is built."""

from __future__ import annotations

from collections.abc import Sequence

from exercises.utils.faults.request import find
from harness.common.faults import Fault


def setting(faults: Sequence[Fault], usual_bytes: int | None) -> int | None:
    """The size of a bucket of gradients in bytes; without the fault `usual_bytes`, None for the framework's own."""
    fault = find(faults, "small-buckets")
    return usual_bytes if fault is None else 1024 * fault.count("kb")


def of_ddp(faults: Sequence[Fault]) -> dict[str, float]:
    """The same as DDP's own setting; none without the fault."""
    size_bytes = setting(faults, None)
    return {} if size_bytes is None else {"bucket_cap_mb": size_bytes / 2**20}
