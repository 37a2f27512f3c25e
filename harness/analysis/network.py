"""A node's network traffic in numbers, from rates over time: of the monitor's counters, or of nsys' samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.analysis.summary import NetworkOverTime, NodeNetwork
from harness.analysis.summary.monitor import MOST_COLUMNS, PortOverTime
from harness.analysis.summary.training import LAST_UNIX_NS, LONGEST_NS
from harness.traces.trace import F64, I64, NicSamples

MOST_NODES_WITH_PORTS = 32


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
    """Both directions of a node, and of each of its ports; the sum of its links' speeds in Gb/s where all are known."""

    ports: dict[str, tuple[MeasuredRates, MeasuredRates]]
    sent: MeasuredRates
    received: MeasuredRates
    loopback: bool = False
    gbps: float | None = None


def traffic_of_samples(nics: Sequence[NicSamples], epoch_ns: int) -> NodeTraffic:
    """What nsys sampled, moved to unix time."""

    def of(some: Sequence[NicSamples]) -> tuple[MeasuredRates, MeasuredRates]:
        sent, received = ([n for n in some if n.sent is way] for way in (True, False))
        return _together(sent, epoch_ns), _together(received, epoch_ns)

    ports = {port: of([nic for nic in nics if nic.port == port]) for port in dict.fromkeys(nic.port for nic in nics)}
    return NodeTraffic(ports, *of(nics))


def node_network(node: str, by: str, traffic: NodeTraffic) -> NodeNetwork | None:
    """The numbers of one node; None where a direction has no rates. by: who took the samples."""
    sent, received, link = traffic.sent, traffic.received, traffic.gbps
    if not len(sent.start_ns) or not len(received.start_ns):
        return None
    over = _over_time(sent, received)
    peak = float(max(sent.bytes_per_s.max(), received.bytes_per_s.max())) / 1e9
    found = NodeNetwork(
        node=node,
        sampled_by=by,
        ports=list(traffic.ports),
        loopback=traffic.loopback,
        duration_ns=sent.covered_ns,
        sent_bytes=round(sent.total_bytes),
        received_bytes=round(received.total_bytes),
        mean_sent_gb_per_s=sent.mean_gb_per_s,
        mean_received_gb_per_s=received.mean_gb_per_s,
        peak_gb_per_s=peak,
        over_time=over,
        ports_over_time=_ports_over_time(over, traffic.ports) if over else [],
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


def _together(nics: Sequence[NicSamples], epoch_ns: int) -> MeasuredRates:
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
    unix = times + epoch_ns
    return MeasuredRates(unix[:-1][there], unix[1:][there], rate[:-1][there])


def _over_time(sent: MeasuredRates, received: MeasuredRates) -> NetworkOverTime | None:
    """None where the times cannot be true, or are of more than a year."""
    begin = min(int(sent.start_ns[0]), int(received.start_ns[0]))
    end = max(int(sent.end_ns[-1]), int(received.end_ns[-1]))
    if begin < 0 or end > LAST_UNIX_NS or end - begin > LONGEST_NS:
        return None
    columns = min(MOST_COLUMNS, max(len(sent.start_ns), len(received.start_ns)))
    width_ns = -(-(end - begin) // columns)
    layers = [_listed(binned(rates, begin, width_ns, columns)) for rates in (sent, received)]
    return NetworkOverTime(start_ns=begin, column_ns=width_ns, sent_gb_per_s=layers[0], received_gb_per_s=layers[1])


def _ports_over_time(
    over: NetworkOverTime, ports: Mapping[str, tuple[MeasuredRates, MeasuredRates]]
) -> list[PortOverTime]:
    columns = over.start_ns, over.column_ns, len(over.sent_gb_per_s)
    return [
        PortOverTime(
            port=port,
            sent_gb_per_s=_listed(binned(sent, *columns)),
            received_gb_per_s=_listed(binned(received, *columns)),
        )
        for port, (sent, received) in ports.items()
    ]


def few_with_ports(nodes: Sequence[NodeNetwork]) -> list[NodeNetwork]:
    """The nodes; of many only their sums, since the ports of a thousand nodes would fill the summary."""
    if len({node.node for node in nodes}) <= MOST_NODES_WITH_PORTS:
        return list(nodes)
    return [node.model_copy(update={"ports_over_time": []}) for node in nodes]


def _listed(gb_per_s: F64) -> list[float | None]:
    return [None if np.isnan(x) else float(f"{x:.4g}") for x in gb_per_s.tolist()]


def rates_over_time(network_over_time: NetworkOverTime, gb_per_s: Sequence[float | None]) -> MeasuredRates:
    """The stretches that have a rate, of one direction."""
    known = [(i, x) for i, x in enumerate(gb_per_s) if x is not None]
    begins = (network_over_time.start_ns + i * network_over_time.column_ns for i, _ in known)
    return rates_of((t, t + network_over_time.column_ns, x * 1e9) for t, (_, x) in zip(begins, known, strict=True))


def binned(rates: MeasuredRates, begin_ns: int, width_ns: int, columns: int) -> F64:
    """(columns,): the mean rate in each column, 10⁹ bytes per second; NaN where there is no rate.

    A difference of integrals: bytes, and the time with a rate, up to each column's edge.
    """
    if not len(rates.start_ns):
        return np.full(columns, np.nan)
    at = np.stack([rates.start_ns - begin_ns, rates.end_ns - begin_ns], 1).ravel().astype(np.float64)
    length = np.repeat(rates.end_ns - rates.start_ns, 2).astype(np.float64)
    length[::2] = 0.0
    edges = np.arange(columns + 1, dtype=np.float64) * width_ns
    moved = np.diff(np.interp(edges, at, np.cumsum(length * np.repeat(rates.bytes_per_s, 2))))
    covered = np.diff(np.interp(edges, at, np.cumsum(length)))
    return np.where(covered > 0, moved / np.where(covered > 0, covered, 1), np.nan) / 1e9
