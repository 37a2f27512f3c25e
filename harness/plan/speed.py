"""How long a step takes (its FLOPs at a share of the device's peak, its messages if they take longer), and what it
costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from harness.launch.job import Job
from harness.plan.memory import Workload, device_name, device_of
from harness.site.site import Network
from harness.theory.communication import (
    MegatronMessages,
    NominalRates,
    PlannedTraffic,
    StepPart,
    ddp_buckets,
    megatron_traffic_per_step,
    ranks_in_node,
    time_by_rates_ns,
    traffic_per_step,
)
from harness.theory.devices import peak_flops_per_s
from harness.theory.flops import RECOMPUTED, USUAL_MFU, expected_bubble, flops_per_token, step_seconds
from harness.theory.memory import megatron_parameters

SECONDS_PER_HOUR = 3600.0
START_S = 120.0
START_SOURCE = "an assumption: container, imports, weights and the profiler's report"
NOMINAL = "the site's nominal rates"
OF_A_STEP: dict[StepPart, float] = {"forward": 1 / 3, "backward": 2 / 3, "optimizer_step": 0.0}


class Speed(NamedTuple):
    """Model FLOP/s of one device, the slowest and the fastest that are expected, and why. peak: of one device."""

    low: float
    high: float
    peak: float
    source: str


def expected_speed(job: Job, w: Workload) -> Speed | str:
    """The usual share of the peak; else why not."""
    name = device_name(job) if w.device == "cuda" else None
    peak = peak_flops_per_s(name, w.precision) if name else None
    if peak is None:
        return _no_peak(w, name)
    usual = USUAL_MFU[w.precision]
    again = RECOMPUTED if w.checkpointing else 1.0
    slower = 1.0 if w.layout.pp == 1 else 1.0 - bubble(w)
    text = f"MFU {usual.low:.0%} to {usual.high:.0%} of {peak[0] / 1e12:g} TFLOP/s, {peak[1]}; {usual.source}"
    return Speed(usual.low * peak[0] / again * slower, usual.high * peak[0] / again * slower, peak[0], text)


def _no_peak(w: Workload, name: str | None) -> str:
    if w.device == "cpu":
        return "no peak of these CPU cores is known: the report of a run will say"
    if name is None:
        return "the site does not say what GPUs it has (gpus.name), so no peak is known"
    return f"configs/devices.yaml has no {w.precision} peak for {name!r}"


def bubble(w: Workload) -> float:
    """Idle share of the pipeline's schedule."""
    return expected_bubble(w.layout.pp, w.micro_batches, w.layout.vpp)


def flops_per_step(w: Workload) -> float:
    """Model FLOPs of all ranks in one step of the loop."""
    return flops_per_token(w.model, w.seq_length, w.lora).total * w.tokens_per_step


def compute_range_ns(w: Workload, speed: Speed) -> tuple[float, float]:
    """(shortest, longest) time of a step's FLOPs."""
    flops = flops_per_step(w)
    return tuple(1e9 * step_seconds(flops, w.ranks, rate, 1.0) for rate in (speed.high, speed.low))  # type: ignore[return-value]  # two


class Cost(NamedTuple):
    """Of the whole job. gpus: 0 if the job holds none. steps_s: all steps, with the fastest and with the slowest; None:
    not known. start_s: all that is no step. watts: of one GPU; None: not
    known."""

    gpus: int
    limit_s: float
    watts: float | None
    steps_s: tuple[float, float] | None = None
    start_s: float = 0.0

    @property
    def expected_s(self) -> tuple[float, float] | None:
        """Steps and start, from and to."""
        if self.steps_s is None:
            return None
        return self.steps_s[0] + self.start_s, self.steps_s[1] + self.start_s

    def gpu_hours(self) -> tuple[float, float] | None:
        """Expected, from and to."""
        if self.expected_s is None or not self.gpus:
            return None
        low, high = (self.gpus * min(s, self.limit_s) / SECONDS_PER_HOUR for s in self.expected_s)
        return low, high

    @property
    def most_gpu_hours(self) -> float:
        """All GPUs until the time limit."""
        return self.gpus * self.limit_s / SECONDS_PER_HOUR

    def most_kwh(self) -> float | None:
        """What the GPUs use if each draws its thermal design power for the longer expected time, else the limit: an
        upper bound, which knows nothing of hosts, network and cooling.

        >>> Cost(gpus=4, limit_s=3600, watts=500).most_kwh()
        2.0
        """
        if self.watts is None or not self.gpus:
            return None
        seconds = self.limit_s if self.expected_s is None else min(self.expected_s[1], self.limit_s)
        return self.gpus * seconds / SECONDS_PER_HOUR * self.watts / 1000


def cost_of(job: Job, w: Workload | None, step_ns: tuple[float, float] | None) -> Cost:
    """The cost of a job; step_ns: of one step, the shortest and the longest that are expected."""
    asked = job.experiment
    gpus = (asked.nodes * (asked.gpus_per_node or 0)) if job.device == "cuda" else 0
    device = device_of(job)
    cost = Cost(gpus, float(job.site.time_s), device.watts if device else None)
    if w is None or step_ns is None:
        return cost
    low, high = (w.steps * each / 1e9 for each in step_ns)
    return cost._replace(steps_s=(low, high), start_s=START_S)


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One kind of message: the traffic of one step of the loop, whether it crosses nodes, and its time if known."""

    traffic: PlannedTraffic
    across: bool
    time_ns: float | None


def sent_per_step(w: Workload, network: Network) -> list[PlannedMessage]:
    """Everything that a rank sends in one step of the training's loop, groups of one rank left out."""
    return [_timed(w, each, network) for each in traffic_of(w) if each.group_size > 1]


def traffic_of(w: Workload) -> list[PlannedTraffic]:
    """Per step of the loop: if gradients are accumulated, an optimizer step's messages are spread over its steps."""
    if w.sharding is None:
        return megatron_traffic_per_step(w.model, w.layout, _messages_of(w))
    found = traffic_per_step(
        w.parameters,
        w.ranks,
        sharding=w.sharding,
        element_bytes=2 if w.bf16 else 4,
        micro_batches=w.micro_batches,
        hpz=w.hpz,
        trained=w.trained,
    )
    overlaps = w.buckets is None or w.buckets.overlap
    share = w.micro_batches_per_step / w.micro_batches
    return [
        replace(
            each,
            message_bytes=each.message_bytes * share,
            messages=_count(w, each.message_bytes) * share,
            hides=each.hides and overlaps,
        )
        for each in found
    ]


def _count(w: Workload, message_bytes: float) -> int:
    """In how many messages these bytes of an optimizer step travel under data parallelism."""
    if w.sharding == "fsdp":
        return (w.model.num_hidden_layers + 1) * w.micro_batches
    if w.buckets is None:
        return ddp_buckets(reversed(w.model.gradients(w.lora)), w.bucket_bytes)
    return ceil(message_bytes / (w.buckets.reduce * (2 if w.bf16 else 4)))


def _messages_of(w: Workload) -> MegatronMessages:
    stages = range(w.layout.pp)
    parameters = sum(megatron_parameters(w.model, w.layout, stage) for stage in stages) / len(stages)
    return MegatronMessages(parameters, w.micro_batch, w.seq_length, w.micro_batches, w.bf16, w.checkpointing)


def _timed(w: Workload, traffic: PlannedTraffic, network: Network) -> PlannedMessage:
    inside = ranks_in_node(traffic.group, w.layout, w.ranks_per_node, w.hpz)
    across = inside < traffic.group_size
    rates = NominalRates(network.link_intra_gbps, network.link_inter_gbps)
    return PlannedMessage(traffic, across, time_by_rates_ns(traffic, across, inside, rates))


@dataclass(frozen=True, slots=True)
class ExposedMessages:
    """Nanoseconds of a step in which messages travel: all of them, and what is exposed at best."""

    total_ns: float
    least_ns: float


def exposed(sent: list[PlannedMessage], compute_ns: float | None) -> ExposedMessages | None:
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
        return ExposedMessages(total, least)
    for part, share in OF_A_STEP.items():
        hiding = sum(e.time_ns or 0.0 for e in sent if e.traffic.hides and e.traffic.part == part)
        least += max(0.0, hiding - share * compute_ns)
    return ExposedMessages(total, least)
