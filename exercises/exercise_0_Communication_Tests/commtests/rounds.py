"""Measures the health check: what each rank, node and pair of nodes does in a second, and computation beside
communication. `answer` judges it.

Every probe is repeated in rounds, all probes in each round: what disturbs the machine for a while disturbs them all.
"""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from harness.common.model.alpha_beta import bus_factor

from . import write_json
from .answer import PARTS
from .measure import ITEM_BYTES, LinkRates, agree_max, bus_bound, send_and_receive
from .overlap import calibrated
from .places import Pair, RankPlace, nodes_of, ring, turns
from .probes import MIB, Probe, about, calls_for, of_device, processes, time_calls

ROUNDS = 9
LEAST_ROUNDS = 3
BUDGET_S = 60.0  # of the rounds after these
SPAN_S = {"cpu": 0.02, "cuda": 0.05}  # of one probe in one round
MESSAGE_BYTES = {"cpu": 4 * MIB, "cuda": 256 * MIB}
MESSAGES = 8
SMALL_BYTES, SMALL_MESSAGES = 8, 50
TIMEOUT = timedelta(seconds=90)  # a link that answers nothing must not keep the check longer
BITS_PER_BYTE = 8
PER_S = {"µs": 1e6, "ms": 1e3}

Seconds = Mapping[str, float]
"""Label → seconds per call on this rank; without the labels in which this rank has no part."""


@dataclass(frozen=True)
class ProbeSeries:
    """One probe in all rounds.

    by: what a label names: rank, node, job, a pair of nodes or ranks, or one of the times of the overlap.
    per_call: as `Probe.per_call`; None: the time itself is the result, in `unit`.
    bound: what the nominal links allow, in `unit`.
    """

    name: str
    unit: str
    by: str
    per_call: float | None
    labels: Sequence[str]
    seconds: Callable[[], Seconds] = field(repr=False)
    bound: float | None = None
    values: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, device: torch.device) -> None:
        """One more round. Every rank must call it; a label's time is that of its slowest rank."""
        mine = self.seconds()
        slowest = torch.tensor([mine.get(label, 0.0) for label in self.labels], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        for label, seconds in zip(self.labels, slowest.tolist(), strict=True):
            value = seconds * PER_S[self.unit] if self.per_call is None else self.per_call / seconds
            self.values.setdefault(label, []).append(value)

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "by": self.by, "bound": self.bound, "values": self.values}


@dataclass(frozen=True)
class ProbedJob:
    """All ranks, and this one among them. slowed: it plays a slow rank."""

    device: torch.device
    places: Sequence[RankPlace]
    links: LinkRates
    slowed: bool

    @property
    def rank(self) -> int:
        return dist.get_rank()

    def timed(self, work: Callable[[], object], calls: int) -> float:
        """Seconds per call on this rank."""
        return time_calls(work, calls, self.device, self.slowed) / calls


def run(options: Namespace) -> int:
    """Returns 0: what was found is judged later, over all nodes."""
    with processes(options, TIMEOUT) as device:
        facts = about(device)
        links = LinkRates(options.link_gbps_intra, options.link_gbps_inter, facts["ranks_per_node"])
        job = ProbedJob(device, _places(), links, options.slow_rank == dist.get_rank())
        parts = (_alone, _inside_nodes, _over_all, _pairs, _overlap)
        found = [series for part in parts for series in part(job)]
        _rounds(found, device)
        if dist.get_rank() == 0:
            probes = [series.record() for series in found]
            ranks = [place._asdict() for place in job.places]
            who = {"slow_rank": options.slow_rank, "ranks": ranks}
            write_json(options.run_dir / "comm" / "health.json", {**facts, **who, "probes": probes})
    return 0


def _places() -> list[RankPlace]:
    mine = RankPlace(int(os.environ.get("GROUP_RANK", "0")), int(os.environ["LOCAL_RANK"]), socket.gethostname())
    places = [mine] * dist.get_world_size()
    dist.all_gather_object(places, mine)
    return places


def _rounds(probe_series: Sequence[ProbeSeries], device: torch.device) -> None:
    begin = time.monotonic()
    for series in probe_series:
        series.measure(device)  # warms up: the first message sets up its connection
        series.values.clear()
    for done in range(ROUNDS):
        if done >= LEAST_ROUNDS and agree_max(time.monotonic() - begin, device) > BUDGET_S:
            return
        for series in probe_series:
            series.measure(device)


def _overlap(job: ProbedJob) -> Iterator[ProbeSeries]:
    """Computation and communication, alone and at once; nothing if there is nobody to communicate with."""
    if len(job.places) > 1:
        work = calibrated(job.device)
        yield ProbeSeries(work.text(), "ms", "part", None, PARTS, work.seconds)


def _alone(job: ProbedJob) -> Iterator[ProbeSeries]:
    """What each rank does alone. Processes of one host take turns with its cores; GPUs work at once, as in a training,
    which also shows a power supply that is too weak for all."""
    everybody = list(range(len(job.places)))
    order = turns(job.places) if job.device.type == "cpu" else [everybody]
    for probe in of_device(job.device):
        labels = [*map(str, everybody)]
        yield ProbeSeries(probe.name, probe.unit, "rank", probe.per_call, labels, _in_turn(job, probe, order))


def _in_turn(job: ProbedJob, probe: Probe, order: Sequence[Sequence[int]]) -> Callable[[], Seconds]:
    calls = 0

    def seconds() -> Seconds:
        nonlocal calls
        found = 0.0
        for ranks in order:
            agree_max(0.0, job.device)  # the turn before is over
            if job.rank in ranks:
                calls = calls or calls_for(probe.work, SPAN_S[job.device.type], job.device)
                found = job.timed(probe.work, calls)
        return {str(job.rank): found}

    return seconds


def _inside_nodes(job: ProbedJob) -> Iterator[ProbeSeries]:
    """An all-reduce inside each node, all nodes at once."""
    nodes = {node: ranks for node, ranks in nodes_of(job.places).items() if len(ranks) > 1}
    made = {node: dist.new_group(ranks) for node, ranks in nodes.items()}
    node = job.places[job.rank].node
    if nodes:
        largest = max(map(len, nodes.values()))
        labels, mine = [*map(str, nodes)], (str(node), made.get(node))
        yield _all_reduce(job, "all-reduce in node", "node", labels, largest, scope="intra", mine=mine)


def _over_all(job: ProbedJob) -> Iterator[ProbeSeries]:
    """An all-reduce over all nodes, and the time of a small one over all ranks."""
    ranks, nodes = len(job.places), len(nodes_of(job.places))
    if nodes > 1:
        scope, mine = "inter" if ranks == nodes else "world", ("all", dist.group.WORLD)
        yield _all_reduce(job, "all-reduce over all", "job", ["all"], ranks, scope=scope, mine=mine)
    if ranks > 1:
        small = torch.zeros(SMALL_BYTES // ITEM_BYTES, device=job.device)

        def seconds() -> Seconds:
            agree_max(0.0, job.device)
            return {"all": job.timed(lambda: dist.all_reduce(small), SMALL_MESSAGES)}

        yield ProbeSeries("small all-reduce", "µs", "job", None, ["all"], seconds)


def _all_reduce(
    job: ProbedJob, name: str, by: str, labels: Sequence[str], ranks: int, *, scope: str, mine: tuple[str, Any]
) -> ProbeSeries:
    """Bus bandwidth of a large message in each of some disjoint groups of `ranks` ranks. mine: the label and the group
    of this rank; no group where it is alone."""
    size = MESSAGE_BYTES[job.device.type]
    message = torch.zeros(size // ITEM_BYTES, device=job.device)
    label, group = mine

    def seconds() -> Seconds:
        agree_max(0.0, job.device)
        return {} if group is None else {label: job.timed(lambda: dist.all_reduce(message, group=group), MESSAGES)}

    per_call = size * bus_factor("all_reduce", ranks) / 1e9
    gbps = bus_bound("all_reduce", scope, ranks, job.links)
    bound = None if gbps is None else gbps / BITS_PER_BYTE
    return ProbeSeries(name, "GB/s", by, per_call, labels, seconds, bound)


def _pairs(job: ProbedJob) -> Iterator[ProbeSeries]:
    """Messages both ways between neighbours of a ring: a slow node is in two slow pairs, a slow link is one."""
    phases = ring(job.places)
    if not phases:
        return
    several = len(nodes_of(job.places)) > 1
    size = MESSAGE_BYTES[job.device.type]
    sent, received = (torch.zeros(size // ITEM_BYTES, device=job.device) for _ in range(2))

    def seconds() -> Seconds:
        found = {}
        for phase in phases:
            agree_max(0.0, job.device)
            for label, peer in _partners(phase, job.rank):
                both = partial(send_and_receive, (sent, peer), (received, peer))
                found[label] = job.timed(both, MESSAGES)
        return found

    labels = [pair.label for phase in phases for pair in phase]
    bound = job.links.inter_gbps / BITS_PER_BYTE if several and job.links.inter_gbps else None
    by = "node pair" if several else "rank pair"
    yield ProbeSeries("neighbours", "GB/s", by, size / 1e9, labels, seconds, bound)


def _partners(pairs: Sequence[Pair], rank: int) -> Iterator[tuple[str, int]]:
    """The rank that this one talks to in a phase, with the pair's label; nothing if it has none."""
    for pair in pairs:
        for one, other in pair.lanes:
            if rank in (one, other):
                yield pair.label, other if rank == one else one
