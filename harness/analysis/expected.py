"""What theory expects of a run, as metrics: bytes of its collectives, memory of its model.

Knows the experiment and the training's own sizes, no trace. Only for data-parallel training (DDP, ZeRO); pipeline.py
computes the pipeline's bubble.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.analysis.summary import Summary
from harness.theory.communication import traffic_per_step
from harness.theory.memory import state_bytes

if TYPE_CHECKING:
    from harness.experiment.base import Experiment


def resolved(summary: Summary) -> Experiment | None:
    """The experiment with the values that the site, the machine and the model added, as far as they were recorded.

    None: the summary is not of a run of the harness.
    """
    asked, filled = summary.experiment, (summary.run or {}).get("resolved")
    if asked is None:  # traces from elsewhere are measured without the experiments
        return None
    from pydantic import ValidationError

    from harness.experiment.base import Experiment

    if not isinstance(asked, Experiment):
        return None
    try:
        return type(asked).model_validate(asked.model_dump() | (filled or {}))
    except (TypeError, ValidationError):
        return asked


def expected_metrics(summary: Summary) -> Iterator[tuple[str, float]]:
    """`expected_<collective>_bytes` per rank and micro-batch, and `expected_state_bytes`: parameters, gradients and
    optimizer of one rank. Its peak memory is larger, by activations and buffers."""
    asked, first = resolved(summary), next(iter(summary.training), None)
    ranks = summary.world_size
    sharding = asked.sharding if asked else None
    if asked is None or sharding is None or first is None or not first.parameters or not ranks:
        return
    # Under DDP autocast leaves parameters and gradients in float32; DeepSpeed keeps and sends them in bfloat16.
    bf16 = sharding != "none" and asked.in_bf16
    hpz = min(asked.copy_ranks, ranks)
    micro_batches = first.gradient_accumulation_steps or 1
    sums: defaultdict[str, float] = defaultdict(float)
    for traffic in traffic_per_step(
        first.parameters,
        ranks,
        sharding=sharding,
        element_bytes=2 if bf16 else 4,
        micro_batches=micro_batches,
        hpz=hpz,
        trained=first.trained_parameters,
    ):
        sums[traffic.kind] += traffic.message_bytes / micro_batches
    yield from ((f"expected_{kind}_bytes", total) for kind, total in sums.items())
    state = state_bytes(
        first.parameters, ranks, sharding=sharding, bf16=bf16, hpz=hpz, trained=first.trained_parameters
    )
    yield "expected_state_bytes", state.total
