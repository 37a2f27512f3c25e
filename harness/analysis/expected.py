"""What theory expects of a run, as metrics: bytes of its collectives, memory of its model.

Knows what the run's record says of the model and the training's own sizes, no trace. Only for data-parallel training
(DDP, ZeRO); pipeline.py computes the pipeline's bubble.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from harness.analysis.summary import Summary
from harness.theory.communication import traffic_per_step
from harness.theory.memory import state_bytes


def expected_metrics(summary: Summary) -> Iterator[tuple[str, float]]:
    """`expected_<collective>_bytes` per rank and micro-batch, and `expected_state_bytes`: parameters, gradients and
    optimizer of one rank. Its peak memory is larger, by activations and buffers."""
    asked: dict[str, Any] = (summary.run or {}).get("theory") or {}  # nothing for traces from elsewhere
    first = next(iter(summary.training), None)
    sharding, ranks = asked.get("sharding"), summary.world_size
    if sharding is None or first is None or not first.parameters or not ranks:
        return
    # Under DDP autocast leaves parameters and gradients in float32; DeepSpeed keeps and sends them in bfloat16.
    bf16 = sharding != "none" and asked["in_bf16"]
    hpz = min(asked["copy_ranks"], ranks)
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
