"""What a step sends, and how long links need for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.common.model.alpha_beta import bus_factor
from harness.common.model.megatron_layout import Layout
from harness.common.model.model_config import ModelConfig, Sharding

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all"]
StepPart = Literal["forward", "backward", "optimizer_step"]
Group = Literal["data", "copy", "copies", "tensor", "context", "pipeline"]
BITS = 8


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """The messages of one rank per optimizer step: a kind of collective in a part of the step.

    message_bytes: of all of them together; messages: their number, None if it is not known. group: which ranks take
    part; `copy` are those that share hpZ's second copy, or the node inside which FSDP shards; `copies` hold equal
    shards. hides: it can overlap with computation.
    """

    kind: CollectiveKind
    part: StepPart
    group_size: int
    message_bytes: float
    messages: float | None = None
    group: Group = "data"
    hides: bool = False


def traffic_per_step(
    parameters: int,
    ranks: int,
    *,
    sharding: Sharding = "none",
    element_bytes: int = 4,
    micro_batches: int = 1,
    hpz: int = 1,
    trained: int | None = None,
) -> list[PlannedTraffic]:
    """The collectives of one optimizer step of data-parallel training, `micro_batches` accumulated.

    element_bytes: of parameters and gradients in messages (2 in DeepSpeed's bf16); of parameters only under FSDP, which
    reduces float32. hpz: ranks of ZeRO++'s secondary partition, which the gathers of the backward pass stay within; or
    of a node, if FSDP shards inside nodes. trained: of the parameters, if DDP or FSDP freezes the others. Ideal: no
    parameter is gathered twice in one pass, or kept from the forward for the backward pass. Gradients are reduced and
    parameters gathered while other layers compute; only what the optimizer's step sends has nothing beside it. Sources:
    Rajbhandari et al., ZeRO, 2020, section 7; Wang et al., ZeRO++, 2023, section 3. Stages 1 and 2 are as DeepSpeed
    0.19.8 sends them (its `use_multi_rank_bucket_allreduce`): an all-reduce in place of the paper's reduce-scatter.
    """
    whole = float(parameters * element_bytes)
    if sharding == "none":
        # no_sync until the last micro-batch
        reduced = whole if trained is None else float(trained * element_bytes)
        return [PlannedTraffic("all_reduce", "backward", ranks, reduced, hides=True)]
    each = whole * micro_batches  # no rank keeps whole gradients, so every micro-batch reduces its own
    if sharding in ("zero1", "zero2"):
        return [
            PlannedTraffic("all_reduce", "backward", ranks, whole if sharding == "zero1" else each, hides=True),
            PlannedTraffic("all_gather", "optimizer_step", ranks, whole),
        ]
    near = hpz > 1
    if sharding == "fsdp":
        reduced = 4.0 * (parameters if trained is None else trained) * micro_batches
        return _of_fsdp(ranks, hpz if near else ranks, each, reduced)
    return [
        PlannedTraffic("all_gather", "forward", ranks, each, hides=True),
        PlannedTraffic(
            "all_gather", "backward", hpz if near else ranks, each, group="copy" if near else "data", hides=True
        ),
        PlannedTraffic("reduce_scatter", "backward", ranks, each, hides=True),
    ]


def ddp_buckets(gradients: Iterable[int], cap_bytes: float | None = None) -> int:
    """The messages of a backward pass of DDP. gradients: the numbers in each, in the order of the backward pass. A
    bucket takes whole float32 gradients until it has `cap_bytes`; None: PyTorch's 25 MiB, and 1 MiB for the first one.

    >>> ddp_buckets([262_144, 262_144, 8_000_000, 262_144]), ddp_buckets([262_144, 8_000_000], cap_bytes=2**20)
    (3, 2)
    """
    limit, count, filled = cap_bytes or 2**20, 0, 0
    for numbers in gradients:
        filled += 4 * numbers
        if filled >= limit:
            limit, count, filled = cap_bytes or 25 * 2**20, count + 1, 0
    return count + (filled > 0)


def _of_fsdp(ranks: int, inside: int, gathered: float, reduced: float) -> list[PlannedTraffic]:
    """PyTorch's FSDP2 over `inside` ranks; if there are more, equal shards are then reduced between the groups.
    Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2."""
    group: Group = "copy" if inside < ranks else "data"
    found = [
        PlannedTraffic("all_gather", "forward", inside, gathered, group=group, hides=True),
        PlannedTraffic("all_gather", "backward", inside, gathered, group=group, hides=True),
        PlannedTraffic("reduce_scatter", "backward", inside, reduced, group=group, hides=True),
    ]
    if inside == ranks:
        return found
    shard = reduced / inside
    return [*found, PlannedTraffic("all_reduce", "backward", ranks // inside, shard, group="copies", hides=True)]


@dataclass(frozen=True, slots=True)
class MegatronMessages:
    """What Megatron's ranks exchange per iteration depends on it. parameters: of a rank, mean over the
    stages. micro_batch: samples. checkpointing: the forward pass of every layer runs twice."""

    parameters: float
    micro_batch: int
    seq_length: int
    micro_batches: int
    bf16: bool
    checkpointing: bool = False


def megatron_traffic_per_step(model: ModelConfig, layout: Layout, pieces: MegatronMessages) -> list[PlannedTraffic]:
    """The messages of one rank of exercise 3's loop per iteration, mean over the pipeline's stages.

    Tensor parallelism with sequence parallelism: per layer and micro-batch two all-gathers and two reduce-scatters of
    the hidden states forward, the same backward, and two all-gathers more, of the inputs that were kept in parts; and
    one reduce-scatter of the embedding and one all-gather before the output layer, with what they need backward. A
    pipeline sends the hidden states of each micro-batch to the next stage, and their gradients back. Context
    parallelism gathers keys and values in every layer and reduces their gradients. The distributed optimizer reduces
    float32 gradients and gathers parameters, once. Sources: Korthikanti et al., 2022, section 4.2.2; Narayanan et al.,
    SC 2021, section 3; Grattafiori et al., Llama 3, 2024, section 3.3.2; Megatron-LM, dist_optimizer.md.
    """
    tp, cp, pp, width = layout.tp, layout.cp, layout.pp, 2 if pieces.bf16 else 4
    again, n = pieces.checkpointing, pieces.micro_batches
    layers = model.num_hidden_layers // pp * n  # times that this rank runs a layer forward per iteration
    end = n / pp  # the first stage's embedding, and the last one's output layer
    crossed = n * (pp * layout.vpp - 1) / pp  # of the p·v − 1 boundaries, shared by the p stages
    tokens = pieces.micro_batch * pieces.seq_length
    hidden = tokens / cp * model.hidden_size * width  # of a micro-batch, on the ranks that share its tokens
    keys = tokens * (max(model.num_key_value_heads, tp) / tp) * model.head_dim * width
    rows: list[tuple[Group, int, CollectiveKind, StepPart, float, float]] = [  # with messages, and the bytes of each
        ("tensor", tp, "all_gather", "forward", 2 * layers + end, hidden),
        ("tensor", tp, "reduce_scatter", "forward", 2 * layers + end, hidden),
        ("tensor", tp, "all_gather", "backward", (4 + 2 * again) * layers + 2 * end, hidden),
        ("tensor", tp, "reduce_scatter", "backward", (2 + 2 * again) * layers + end, hidden),
        ("context", cp, "all_gather", "forward", 2 * layers * (1 + again), keys),
        ("context", cp, "reduce_scatter", "backward", 2 * layers, keys),
        ("pipeline", pp, "send_recv", "forward", crossed, hidden / tp),
        ("pipeline", pp, "send_recv", "backward", crossed, hidden / tp),
    ]
    found = [
        PlannedTraffic(kind, part, size, count * each, count, group, hides=group == "pipeline" and layout.vpp > 1)
        for group, size, kind, part, count, each in rows
        if size > 1
    ]
    if (ranks := layout.dp * cp) > 1:
        found.append(PlannedTraffic("reduce_scatter", "backward", ranks, 4.0 * pieces.parameters, hides=True))
        found.append(PlannedTraffic("all_gather", "forward", ranks, float(width * pieces.parameters), hides=True))
    return found


def span(group: Group, layout: Layout, hpz: int = 1) -> tuple[int, int]:
    """(ranks between neighbours of such a group, ranks in it). Megatron numbers the tensor, context, data and pipeline
    ranks in this order, the first fastest; hpZ's groups are consecutive ranks.

    >>> span("pipeline", Layout(16, tp=4, pp=2)), span("data", Layout(16, tp=4, pp=2))
    ((8, 2), (4, 2))
    """
    strides: dict[Group, tuple[int, int]] = {
        "copy": (1, hpz),
        "copies": (hpz, layout.world // hpz),
        "tensor": (1, layout.tp),
        "context": (layout.tp, layout.cp),
        "pipeline": (layout.world // layout.pp, layout.pp),
        "data": (layout.tp, layout.dp * layout.cp),
    }
    return strides[group]


def ranks_in_node(group: Group, layout: Layout, per_node: int, hpz: int = 1) -> int:
    """How many ranks of a group share a node; all of them if the group is in one node.

    >>> ranks_in_node("data", Layout(8), 4), ranks_in_node("pipeline", Layout(8, tp=4, pp=2), 4)
    (4, 1)
    """
    stride, size = span(group, layout, hpz)
    return max(1, min(size, per_node // stride))


@dataclass(frozen=True, slots=True)
class NominalRates:
    """Nominal rates of one device in one direction, in Gb/s: inside its node, and its share of the network."""

    intra_gbps: float | None = None
    inter_gbps: float | None = None


def time_by_rates_ns(traffic: PlannedTraffic, across: bool, ranks_in_node: int, rates: NominalRates) -> float | None:
    """Bytes that each link must carry over its rate, without latency: the least possible time.

    A ring over several nodes enters and leaves each through the network shares of all its ranks there, so its rate is
    the slower of one device's link and those shares together. None: the rate is not known.

    >>> time_by_rates_ns(PlannedTraffic("all_reduce", "backward", 4, 1e9), False, 4, NominalRates(intra_gbps=2400))
    5000000.0
    """
    rate = rates.intra_gbps
    if across:
        together = None if rates.inter_gbps is None else rates.inter_gbps * ranks_in_node
        rate = min((r for r in (together, rates.intra_gbps if ranks_in_node > 1 else None) if r), default=None)
        rate = rate if together is not None else None
    if rate is None:
        return None
    return traffic.message_bytes * bus_factor(traffic.kind, traffic.group_size) * BITS / rate
