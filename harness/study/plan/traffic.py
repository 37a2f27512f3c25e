"""What the ranks of a workload send in one step, over which links, how long that takes and what of it can hide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from harness.site.site import Network
from harness.study.plan.history import MeasuredLinks
from harness.study.plan.workload import Workload
from harness.theory.communication import (
    Pieces,
    StepPart,
    Traffic,
    megatron_traffic_per_step,
    ranks_in_node,
    traffic_per_step,
)
from harness.theory.links import Rates, time_by_line_ns, time_by_rates_ns
from harness.theory.memory import megatron_parameters

NOMINAL = "the site's nominal rates"
OF_A_STEP: dict[StepPart, float] = {"forward": 1 / 3, "backward": 2 / 3, "optimizer_step": 0.0}


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One kind of message: the traffic of one step of the loop, whether it crosses nodes, and its time if known."""

    traffic: Traffic
    across: bool
    time_ns: float | None
    source: str


def sent_per_step(w: Workload, network: Network, measured: MeasuredLinks | None) -> list[PlannedMessage]:
    """Everything that a rank sends in one step of the training's loop, groups of one rank left out."""
    return [_timed(w, each, network, measured) for each in traffic_of(w) if each.group_size > 1]


def traffic_of(w: Workload) -> list[Traffic]:
    """Per step of the loop: if gradients are accumulated, an optimizer step's messages are spread over its steps."""
    if w.sharding is None:
        return megatron_traffic_per_step(w.model, w.layout, _pieces(w))
    width = 2 if w.bf16 else 4
    found = traffic_per_step(
        w.parameters,
        w.ranks,
        sharding=w.sharding,
        element_bytes=width,
        micro_batches=w.micro_batches,
        hpz=w.hpz,
        trained=w.trained,
    )
    bucket = w.bucket_bytes if w.buckets is None else w.buckets.reduce * width
    overlaps = w.buckets is None or w.buckets.overlap
    share = w.micro_batches_per_step / w.micro_batches
    units = (w.model.num_hidden_layers + 1) * w.micro_batches if w.sharding == "fsdp" else 0
    return [
        replace(
            each,
            message_bytes=each.message_bytes * share,
            messages=(units or ceil(each.message_bytes / bucket)) * share,
            hides=each.hides and overlaps,
        )
        for each in found
    ]


def _pieces(w: Workload) -> Pieces:
    stages = range(w.layout.pp)
    parameters = sum(megatron_parameters(w.model, w.layout, stage)[0] for stage in stages) / len(stages)
    return Pieces(parameters, w.micro_batch, w.seq_length, w.micro_batches, w.bf16, w.checkpointing)


def _timed(w: Workload, traffic: Traffic, network: Network, measured: MeasuredLinks | None) -> PlannedMessage:
    inside = ranks_in_node(traffic.group, w.layout, w.ranks_per_node, w.hpz)
    across = inside < traffic.group_size
    if measured is not None:
        by_line = time_by_line_ns(traffic, across, measured.lines)
        if by_line is not None:
            return PlannedMessage(traffic, across, by_line, f"α and β of {measured.job_id}, exercise 0")
    rates = Rates(network.link_intra_gbps, network.link_inter_gbps)
    return PlannedMessage(traffic, across, time_by_rates_ns(traffic, across, inside, rates), NOMINAL)


@dataclass(frozen=True, slots=True)
class Exposed:
    """Nanoseconds of a step in which messages travel: all of them, and what is exposed at best."""

    total_ns: float
    least_ns: float


def exposed(sent: list[PlannedMessage], compute_ns: float | None) -> Exposed | None:
    """How long messages take, and what cannot hide; None if a time is not known, or nothing is sent.

    compute_ns: of one step; a third of it is the forward pass, behind which its messages can hide at best. Where it is
    not known, all that can hide does at best.
    """
    times = [each.time_ns for each in sent]
    if not times or None in times:
        return None
    total = sum(time or 0.0 for time in times)
    least = sum(each.time_ns or 0.0 for each in sent if not each.traffic.hides)
    if compute_ns is None:
        return Exposed(total, least)
    for part, share in OF_A_STEP.items():
        hiding = sum(e.time_ns or 0.0 for e in sent if e.traffic.hides and e.traffic.part == part)
        least += max(0.0, hiding - share * compute_ns)
    return Exposed(total, least)
