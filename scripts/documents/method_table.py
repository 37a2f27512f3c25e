"""What each method of parallelism sends and keeps, in one example: a part of docs/communication.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.common.display.format import amount
from harness.common.model.megatron_layout import Layout
from harness.common.model.model_config import Sharding
from harness.experiment.model import find_model
from harness.theory.communication import (
    MegatronMessages,
    PlannedTraffic,
    StepPart,
    megatron_traffic_per_step,
    traffic_per_step,
)
from harness.theory.memory import megatron_parameters, megatron_state_bytes, state_bytes

RANKS, PER_NODE, SAMPLES, SEQUENCE = 8, 4, 8, 4096
MODEL = find_model("mistral-7b")[0]
EXAMPLE = (
    f"Mistral-7B in bf16 on {RANKS} GPUs, {PER_NODE} per node, {SAMPLES} samples of {SEQUENCE} tokens per step; "
    "TP, PP and CP divide over all of them"
)
_PARTS: tuple[StepPart, ...] = ("forward", "backward", "optimizer_step")
# Under DDP and FSDP weights and gradients are float32; FSDP gathers in bf16.
_DATA_PARALLEL: tuple[tuple[str, str, Sharding, int, int], ...] = (
    ("DDP", "nothing", "none", 4, 1),
    ("FSDP", "parameters, gradients, optimizer state", "fsdp", 2, 1),
    ("ZeRO-1", "optimizer state", "zero1", 2, 1),
    ("ZeRO-2", "optimizer state, gradients", "zero2", 2, 1),
    ("ZeRO-3", "optimizer state, gradients, parameters", "zero3", 2, 1),
    ("hpZ", "as ZeRO-3, and a copy of the parameters in each node", "zero3", 2, PER_NODE),
)
_MODEL_PARALLEL = (
    ("TP", "each matrix, and with it optimizer state and activations", Layout(RANKS, tp=RANKS)),
    ("PP", "the layers", Layout(RANKS, pp=RANKS)),
    ("CP", "the tokens of each sample; optimizer state", Layout(RANKS, cp=RANKS)),
)


class MethodRow(NamedTuple):
    """A method with what it shards, a rank's messages in a step, and the bytes of its state."""

    name: str
    shards: str
    sent: Sequence[PlannedTraffic]
    state_bytes: float


def methods() -> Iterator[MethodRow]:
    """Every method in the example. Of a pipeline the messages are a mean, and the state is the first stage's."""
    parameters = MODEL.parameters()
    for name, shards, sharding, width, hpz in _DATA_PARALLEL:
        sent = traffic_per_step(parameters, RANKS, sharding=sharding, element_bytes=width, hpz=hpz)
        bf16 = sharding.startswith("zero")
        yield MethodRow(name, shards, sent, state_bytes(parameters, RANKS, sharding=sharding, bf16=bf16, hpz=hpz).total)
    for name, shards, layout in _MODEL_PARALLEL:
        held = megatron_parameters(MODEL, layout, 0)
        sent = megatron_traffic_per_step(MODEL, layout, MegatronMessages(held, 1, SEQUENCE, SAMPLES, bf16=True))
        yield MethodRow(name, shards, sent, megatron_state_bytes(held, layout, bf16=True).total)


def cells(row: MethodRow) -> list[str]:
    return [row.name, row.shards, *(_sent(row.sent, part) or "–" for part in _PARTS), amount(row.state_bytes)]


def _sent(traffic: Sequence[PlannedTraffic], part: StepPart) -> str:
    named = {"copy": ", in a node"}
    return ", ".join(
        f"{t.kind.replace('_', '/' if t.kind == 'send_recv' else '-')} {amount(t.message_bytes)}"
        f"{named.get(t.group, '')}"
        for t in traffic
        if t.part == part
    )
