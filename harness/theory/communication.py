"""How many bytes a training communicates per optimizer step, by collective, by part of the step and by group of ranks.

Messages are counted as nccl-tests counts them, by the larger of input and output, which is also what our traces
report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.common.alpha_beta import bus_factor
from harness.common.megatron_layout import Layout
from harness.common.model_config import ModelConfig, Sharding

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all"]
StepPart = Literal["forward", "backward", "optimizer_step"]
Group = Literal["data", "copy", "copies", "tensor", "context", "expert", "pipeline"]


@dataclass(frozen=True, slots=True)
class Traffic:
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
) -> list[Traffic]:
    """The collectives of one optimizer step of data-parallel training, `micro_batches` accumulated.

    element_bytes: of parameters and gradients in messages (2 in DeepSpeed's bf16); of parameters only under FSDP, which
    reduces float32. hpz: ranks of ZeRO++'s secondary partition, which the gathers of the backward pass stay within; or
    of a node, if FSDP shards inside nodes. trained: of the parameters,
    if DDP or FSDP freezes the others. Ideal: no parameter is gathered twice in
    one pass, or kept from the forward for the backward pass. Gradients are reduced and parameters gathered while other
    layers compute; only what the optimizer's step sends has nothing beside it. Sources: Rajbhandari et al., ZeRO, 2020,
    section 7; Wang et al., ZeRO++, 2023, section 3.
    """
    whole = float(parameters * element_bytes)
    if sharding == "none":
        # no_sync until the last micro-batch
        reduced = whole if trained is None else float(trained * element_bytes)
        return [Traffic("all_reduce", "backward", ranks, reduced, hides=True)]
    if sharding == "zero1":
        return [
            Traffic("reduce_scatter", "backward", ranks, whole, hides=True),
            Traffic("all_gather", "optimizer_step", ranks, whole),
        ]
    each = whole * micro_batches  # no rank keeps whole gradients, so every micro-batch reduces its own
    if sharding == "zero2":
        return [
            Traffic("reduce_scatter", "backward", ranks, each, hides=True),
            Traffic("all_gather", "optimizer_step", ranks, whole),
        ]
    near = hpz > 1
    if sharding == "fsdp":
        reduced = 4.0 * (parameters if trained is None else trained) * micro_batches
        return _of_fsdp(ranks, hpz if near else ranks, each, reduced)
    return [
        Traffic("all_gather", "forward", ranks, each, hides=True),
        Traffic("all_gather", "backward", hpz if near else ranks, each, group="copy" if near else "data", hides=True),
        Traffic("reduce_scatter", "backward", ranks, each, hides=True),
    ]


def _of_fsdp(ranks: int, inside: int, gathered: float, reduced: float) -> list[Traffic]:
    """PyTorch's FSDP2 over `inside` ranks; if there are more, equal shards are then reduced between the groups.
    Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2."""
    group: Group = "copy" if inside < ranks else "data"
    found = [
        Traffic("all_gather", "forward", inside, gathered, group=group, hides=True),
        Traffic("all_gather", "backward", inside, gathered, group=group, hides=True),
        Traffic("reduce_scatter", "backward", inside, reduced, group=group, hides=True),
    ]
    if inside == ranks:
        return found
    shard = reduced / inside
    return [*found, Traffic("all_reduce", "backward", ranks // inside, shard, group="copies", hides=True)]


@dataclass(frozen=True, slots=True)
class Pieces:
    """What Megatron's ranks exchange per iteration depends on it. parameters: of a rank, experts left out, mean
    over the stages. micro_batch: samples. checkpointing: the forward pass of every layer runs twice."""

    parameters: float
    micro_batch: int
    seq_length: int
    micro_batches: int
    bf16: bool
    checkpointing: bool = False
    overlap: bool = True


def megatron_traffic_per_step(model: ModelConfig, layout: Layout, pieces: Pieces) -> list[Traffic]:
    """The messages of one rank of exercise 3's loop per iteration, mean over the pipeline's stages.

    Tensor parallelism with sequence parallelism: per layer and micro-batch two all-gathers and two reduce-scatters of
    the hidden states forward, the same backward, and two all-gathers more, of the inputs that were kept in parts; and
    one reduce-scatter of the embedding and one all-gather before the output layer, with what they need backward. A
    pipeline sends the hidden states of each micro-batch to the next stage, and their gradients back. Context
    parallelism gathers keys and values in every layer and reduces their gradients. The distributed optimizer reduces
    float32 gradients and gathers parameters, once. Sources: Korthikanti et al., 2022, section 4.2.2; Narayanan et al.,
    SC 2021, section 3; Grattafiori et al., Llama 3, 2024, section 3.3.2; Megatron-LM, dist_optimizer.md.
    """
    return [
        *_tensor(model, layout, pieces),
        *_context(model, layout, pieces),
        *_pipeline(model, layout, pieces),
        *_experts(model, layout, pieces),
        *_distributed_optimizer(layout, pieces),
    ]


def _hidden_bytes(model: ModelConfig, layout: Layout, p: Pieces) -> float:
    """The hidden states of a micro-batch on the ranks that share its tokens."""
    return p.micro_batch * p.seq_length / layout.cp * model.hidden_size * (2 if p.bf16 else 4)


def _layers(model: ModelConfig, layout: Layout, p: Pieces) -> int:
    """Times that this rank runs a layer forward per iteration."""
    return model.num_hidden_layers // layout.pp * p.micro_batches


def _tensor(model: ModelConfig, layout: Layout, p: Pieces) -> Iterator[Traffic]:
    if layout.tp == 1:
        return
    size, layers = _hidden_bytes(model, layout, p), _layers(model, layout, p)
    again = 2 * layers * p.checkpointing
    end = p.micro_batches / layout.pp  # the first stage's embedding, and the last one's output layer
    counts: list[tuple[CollectiveKind, StepPart, float]] = [
        ("all_gather", "forward", 2 * layers + end),
        ("reduce_scatter", "forward", 2 * layers + end),
        ("all_gather", "backward", 4 * layers + again + 2 * end),
        ("reduce_scatter", "backward", 2 * layers + again + end),
    ]
    for kind, part, count in counts:
        yield Traffic(kind, part, layout.tp, count * size, count, "tensor")


def _context(model: ModelConfig, layout: Layout, p: Pieces) -> Iterator[Traffic]:
    if layout.cp == 1:
        return
    groups = max(model.num_key_value_heads, layout.tp) / layout.tp
    each = p.micro_batch * p.seq_length * groups * model.head_dim * (2 if p.bf16 else 4)
    forward = 2 * _layers(model, layout, p)  # keys and values
    gathers = forward * (2 if p.checkpointing else 1)
    yield Traffic("all_gather", "forward", layout.cp, gathers * each, gathers, "context")
    yield Traffic("reduce_scatter", "backward", layout.cp, forward * each, forward, "context")


def _pipeline(model: ModelConfig, layout: Layout, p: Pieces) -> Iterator[Traffic]:
    """What crosses the pipeline's p·v − 1 boundaries, shared by its p stages."""
    if layout.pp == 1:
        return
    messages = p.micro_batches * (layout.pp * layout.vpp - 1) / layout.pp
    size = messages * _hidden_bytes(model, layout, p) / layout.tp
    parts: tuple[StepPart, StepPart] = ("forward", "backward")
    for part in parts:
        yield Traffic("send_recv", part, layout.pp, size, messages, "pipeline", hides=layout.vpp > 1)


def _experts(model: ModelConfig, layout: Layout, p: Pieces) -> Iterator[Traffic]:
    if layout.ep == 1:
        return
    count = 2 * _layers(model, layout, p)  # to the experts and back
    size = _hidden_bytes(model, layout, p) / layout.tp * model.num_experts_per_tok
    parts: tuple[tuple[StepPart, int], ...] = (("forward", count), ("backward", count * (1 + p.checkpointing)))
    for part, messages in parts:
        yield Traffic("all_to_all", part, layout.ep, messages * size, messages, "expert")


def _distributed_optimizer(layout: Layout, p: Pieces) -> Iterator[Traffic]:
    ranks = layout.dp * layout.cp
    if ranks == 1:
        return
    parameters = float(p.parameters)
    yield Traffic("reduce_scatter", "backward", ranks, 4 * parameters, hides=p.overlap)
    yield Traffic("all_gather", "forward", ranks, (2 if p.bf16 else 4) * parameters, hides=p.overlap)


def span(group: Group, layout: Layout, hpz: int = 1) -> tuple[int, int]:
    """(ranks between neighbours of such a group, ranks in it). Megatron numbers the tensor, context, data and pipeline
    ranks in this order, the first fastest; hpZ's groups are consecutive ranks.

    >>> span("pipeline", Layout(16, tp=4, pp=2)), span("data", Layout(16, tp=4, pp=2))
    ((8, 2), (4, 2))
    """
    if group in ("copy", "copies"):
        return (1, hpz) if group == "copy" else (hpz, layout.world // hpz)
    if group == "tensor":
        return 1, layout.tp
    if group == "context":
        return layout.tp, layout.cp
    if group == "expert":
        return layout.tp, layout.ep
    if group == "pipeline":
        return layout.world // layout.pp, layout.pp
    return layout.tp, layout.dp * layout.cp


def ranks_in_node(group: Group, layout: Layout, per_node: int, hpz: int = 1) -> int:
    """How many ranks of a group share a node; all of them if the group is in one node.

    >>> ranks_in_node("data", Layout(8), 4), ranks_in_node("pipeline", Layout(8, tp=4, pp=2), 4)
    (4, 1)
    """
    stride, size = span(group, layout, hpz)
    return max(1, min(size, per_node // stride))


BITS = 8


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """A measured α and β of one collective between so many ranks. across: between nodes."""

    kind: str
    ranks: int
    across: bool
    alpha_ns: float
    beta_ns_per_byte: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Nominal rates of one device in one direction, in Gb/s: inside its node, and its share of the network."""

    intra_gbps: float | None = None
    inter_gbps: float | None = None


def time_by_line_ns(traffic: Traffic, across: bool, lines: Sequence[MeasuredLink]) -> float | None:
    """α per message, β per byte, of the line for this collective and reach with the nearest number of ranks.

    β is scaled by what each link must carry, 2(n−1)/n and the like. None: there is no such line, or a message count is
    missing and latency counts.
    """
    fitting = [line for line in lines if line.kind == traffic.kind and line.across == across]
    if not fitting:
        return None
    line = min(fitting, key=lambda each: abs(each.ranks - traffic.group_size))
    here, there = bus_factor(traffic.kind, traffic.group_size), bus_factor(traffic.kind, line.ranks)
    beta = line.beta_ns_per_byte * (here / there if there else 1.0)
    return line.alpha_ns * (traffic.messages or 0) + beta * traffic.message_bytes


def time_by_rates_ns(traffic: Traffic, across: bool, ranks_in_node: int, rates: Rates) -> float | None:
    """Bytes that each link must carry over its rate, without latency: the least possible time.

    A ring over several nodes enters and leaves each through the network shares of all its ranks there, so its rate is
    the slower of one device's link and those shares together. None: the rate is not known.

    >>> time_by_rates_ns(Traffic("all_reduce", "backward", 4, 1e9), False, 4, Rates(intra_gbps=2400))
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
