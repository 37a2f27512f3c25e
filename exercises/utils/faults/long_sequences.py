"""long-sequences: a rank's samples are longer than those of the others."""

from __future__ import annotations

from exercises.utils.data import TokenBatch
from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Repeat each sample, with its labels, behind itself."""
    times = fault.count("times")

    def longer(batch: TokenBatch) -> TokenBatch:
        return {name: tokens.repeat(1, times) for name, tokens in batch.items()}

    target.moments.change_batches(longer)
