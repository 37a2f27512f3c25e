"""uneven-stages: one end of the pipeline has more layers than the other stages."""

from __future__ import annotations

from collections.abc import Sequence

from exercises.utils.faults.request import find
from harness.common.faults import Fault, layers_at_the_end


def setting(faults: Sequence[Fault], layers: int, stages: int) -> dict[str, int]:
    """Megatron's setting of the layers of the first or the last stage; without the fault none: all have the same."""
    fault = find(faults, "uneven-stages")
    if fault is None:
        return {}
    name = f"num_layers_in_{fault.values['stage']}_pipeline_stage"
    return {name: layers_at_the_end(fault, layers, stages)}
