"""How many bytes data-parallel training communicates per optimizer step, by collective and by part of the step.

Messages are counted as nccl-tests counts them, by the larger of input and output, which is also what our traces
report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.experiment.advice import Sharding

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter"]
StepPart = Literal["forward", "backward", "optimizer_step"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of one rank per optimizer step: a kind of collective in a part of the step."""

    kind: CollectiveKind
    part: StepPart
    group_size: int
    message_bytes: float  # of all messages of this kind together


def traffic_per_step(
    parameters: int,
    ranks: int,
    *,
    sharding: Sharding = "none",
    element_bytes: int = 4,
    micro_batches: int = 1,
    hpz: int = 1,
) -> list[Traffic]:
    """The collectives of one optimizer step, `micro_batches` accumulated.

    element_bytes: of parameters and gradients in messages (2 in DeepSpeed's bf16). hpz: ranks of ZeRO++'s
    secondary partition, which the gathers of the backward pass stay within. Ideal: no parameter is gathered twice in
    one pass, or kept from the forward for the backward pass. Sources: Rajbhandari et al., ZeRO, 2020, section 7;
    Wang et al., ZeRO++, 2023, section 3.
    """
    whole = float(parameters * element_bytes)
    if sharding == "none":
        return [Traffic("all_reduce", "backward", ranks, whole)]  # no_sync until the last micro-batch
    if sharding == "zero1":
        return [
            Traffic("reduce_scatter", "backward", ranks, whole),
            Traffic("all_gather", "optimizer_step", ranks, whole),
        ]
    each = whole * micro_batches  # no rank keeps whole gradients, so every micro-batch reduces its own
    if sharding == "zero2":
        return [
            Traffic("reduce_scatter", "backward", ranks, each),
            Traffic("all_gather", "optimizer_step", ranks, whole),
        ]
    return [
        Traffic("all_gather", "forward", ranks, each),
        Traffic("all_gather", "backward", hpz if hpz > 1 else ranks, each),
        Traffic("reduce_scatter", "backward", ranks, each),
    ]
