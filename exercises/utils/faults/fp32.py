"""fp32: computes in fp32 although bf16 is requested."""

from __future__ import annotations

from collections.abc import Sequence

from exercises.utils.faults.request import find
from harness.common.faults import Fault


def setting(faults: Sequence[Fault], usual: bool) -> bool:
    """Whether to compute in bf16; without the fault `usual`."""
    return usual and find(faults, "fp32") is None
