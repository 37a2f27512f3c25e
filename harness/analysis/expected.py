"""What theory expects of a run, in the words of its measured facts: bytes of its collectives, memory of its model.

Knows the experiment and the training's own sizes, no trace. Only data-parallel training (DDP, ZeRO) is foretold; the
pipeline's bubble is pipeline.py's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from harness.analysis.summary import Summary
from harness.theory.communication import traffic_per_step
from harness.theory.memory import Sharding, state_bytes

_SHARDING: dict[tuple[int, int | None], Sharding] = {(1, None): "none", (2, 2): "zero2", (2, 3): "zero3"}


def resolved(summary: Summary) -> dict[str, Any]:
    """The experiment's fields with what the site, the machine and the model filled in, as far as that was recorded."""
    filled = (summary.run or {}).get("resolved")
    return (summary.experiment or {}) | (filled if isinstance(filled, dict) else {})


def expected_facts(summary: Summary) -> Iterator[tuple[str, float]]:
    """`expected_<collective>_bytes` per rank and micro-batch, and `expected_state_bytes`: parameters, gradients and
    optimizer of one rank, which its peak memory exceeds by activations and buffers."""
    said, first = resolved(summary), next(iter(summary.training), None)
    sharding = _SHARDING.get((said.get("exercise", -1), said.get("zero_stage")))
    ranks = summary.world_size
    if sharding is None or first is None or not first.parameters or not ranks:
        return
    # Under DDP autocast leaves parameters and gradients in float32; DeepSpeed keeps and sends them in bfloat16.
    bf16 = sharding != "none" and bool(said.get("mixed_precision"))
    hpz = min(said.get("hpz_partition") or 1, ranks)
    micro_batches = first.gradient_accumulation_steps or 1
    sums: defaultdict[str, float] = defaultdict(float)
    for traffic in traffic_per_step(
        first.parameters,
        ranks,
        sharding=sharding,
        element_bytes=2 if bf16 else 4,
        micro_batches=micro_batches,
        hpz=hpz,
    ):
        sums[traffic.kind] += traffic.message_bytes / micro_batches
    if sharding == "zero2":  # where DeepSpeed reduces by all_reduce or by reduce_scatter, as it sees fit
        sums.pop("reduce_scatter")
    yield from ((f"expected_{kind}_bytes", total) for kind, total in sums.items())
    secondary = hpz if hpz < ranks else 1  # over all ranks it is the partition itself
    state = state_bytes(first.parameters, ranks, sharding=sharding, bf16=bf16, hpz=secondary)
    yield "expected_state_bytes", state.total
