"""A node's network traffic in numbers, from rates: of the monitor's counters, or of nsys' samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from harness.analysis.summary import NodeNetwork
from harness.traces.trace import F64, I64, NicSamples


class MeasuredRates(NamedTuple):
    """Bytes per second from `start_ns` to `end_ns`, in order of time; no two overlap. Length n."""

    start_ns: I64
    end_ns: I64
    bytes_per_s: F64

    @property
    def covered_ns(self) -> int:
        """The time with a rate."""
        return int((self.end_ns - self.start_ns).sum())

    @property
    def total_bytes(self) -> float:
        """All bytes of that time."""
        return float(np.dot(self.bytes_per_s, (self.end_ns - self.start_ns) / 1e9))

    @property
    def mean_gb_per_s(self) -> float:
        """10⁹ bytes per second."""
        return self.total_bytes / max(self.covered_ns, 1)


class NodeTraffic(NamedTuple):
    """Both directions of a node, all its ports together; the sum of its links' speeds in Gb/s where all are known."""

    ports: Sequence[str]
    sent: MeasuredRates
    received: MeasuredRates
    gbps: float | None = None


def traffic_of_samples(nics: Sequence[NicSamples]) -> NodeTraffic:
    """What nsys sampled."""
    sent, received = (_together([nic for nic in nics if nic.sent is way]) for way in (True, False))
    return NodeTraffic(list(dict.fromkeys(nic.port for nic in nics)), sent, received)


def node_network(node: str, by: str, traffic: NodeTraffic) -> NodeNetwork | None:
    """The numbers of one node; None where a direction has no rates. by: who took the samples."""
    sent, received, link = traffic.sent, traffic.received, traffic.gbps
    if not len(sent.start_ns) or not len(received.start_ns):
        return None
    peak = float(max(sent.bytes_per_s.max(), received.bytes_per_s.max())) / 1e9
    found = NodeNetwork(
        node=node,
        sampled_by=by,
        ports=list(traffic.ports),
        duration_ns=sent.covered_ns,
        sent_bytes=round(sent.total_bytes),
        received_bytes=round(received.total_bytes),
        mean_sent_gb_per_s=sent.mean_gb_per_s,
        mean_received_gb_per_s=received.mean_gb_per_s,
        peak_gb_per_s=peak,
    )
    return found if link is None else _linked(found, link / 8, "kernel")


def placed(
    node_network: NodeNetwork, switch: str | None, beside: NodeNetwork | None, site_gbps: float | None
) -> NodeNetwork:
    """The numbers with the node's switch, and its link where that is not known yet: of what another source says of the
    same node, else `site_gbps`, the node's share of the network as the site has it."""
    node = node_network.model_copy(update={"switch": switch})
    if node.link_gb_per_s is not None:
        return node
    if beside is not None and beside.link_gb_per_s is not None:
        return _linked(node, beside.link_gb_per_s, beside.link_from)
    return node if site_gbps is None else _linked(node, site_gbps / 8, "site")


def _linked(node_network: NodeNetwork, gb_per_s: float, origin: str | None) -> NodeNetwork:
    share = node_network.peak_gb_per_s / gb_per_s
    return node_network.model_copy(update={"link_gb_per_s": gb_per_s, "link_from": origin, "peak_share": share})


def rates_of(samples: Iterable[tuple[int, int, float]]) -> MeasuredRates:
    table = list(samples)
    times = np.array([row[:2] for row in table], np.int64).reshape(-1, 2)
    return MeasuredRates(times[:, 0], times[:, 1], np.array([row[2] for row in table], np.float64))


def _together(nics: Sequence[NicSamples]) -> MeasuredRates:
    """The sum of all ports: at each moment of those that have a sample there."""
    if not nics:
        return rates_of([])
    begins, ends = (np.concatenate(x) for x in ([n.start_ns for n in nics], [n.end_ns for n in nics]))
    rates = np.concatenate([n.bytes_per_s for n in nics])
    times, place = np.unique(np.concatenate([begins, ends]), return_inverse=True)
    change = np.bincount(place, np.concatenate([rates, -rates]), len(times))
    ports = np.cumsum(np.bincount(place, np.repeat([1.0, -1.0], len(rates)), len(times)))
    rate = np.maximum(np.cumsum(change), 0.0)  # what sums of binary fractions leave may be below it
    there = ports[:-1] > 0.5
    return MeasuredRates(times[:-1][there], times[1:][there], rate[:-1][there])
