"""A node's network traffic as the monitor beside the job saw it, in numbers. Reads no trace."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import NodeNetwork
from harness.monitor.network import NicSeries, summed


def node_network(
    node: str, nics: Sequence[NicSeries], switch: str | None = None, site_gbps: float | None = None
) -> NodeNetwork | None:
    """The numbers of one node; None where no rate is known. site_gbps: the node's share of the network as the site has
    it, for ports whose speed the kernel does not know."""
    sent, received = summed(nics, "sent_bytes"), summed(nics, "received_bytes")
    if not sent or not received:
        return None
    speeds = [nic.nic.gbps for nic in nics]
    known = [gbps for gbps in speeds if gbps is not None]
    link = sum(known) if len(known) == len(speeds) else site_gbps
    peak = max(rate for *_, rate in (*sent, *received)) / 1e9
    return NodeNetwork(
        node=node,
        switch=switch,
        ports=[nic.nic.name for nic in nics],
        loopback=any(nic.nic.kind == "loopback" for nic in nics),
        duration_ns=sum(end - start for start, end, _ in sent),
        sent_bytes=round(_total(sent)),
        received_bytes=round(_total(received)),
        mean_sent_gb_per_s=_mean(sent),
        mean_received_gb_per_s=_mean(received),
        peak_gb_per_s=peak,
        link_gb_per_s=None if link is None else link / 8,
        link_from=None if link is None else "kernel" if len(known) == len(speeds) else "site",
        peak_share=None if link is None else peak / (link / 8),
    )


def _total(rates: Sequence[tuple[int, int, float]]) -> float:
    return sum(rate * (end - start) / 1e9 for start, end, rate in rates)


def _mean(rates: Sequence[tuple[int, int, float]]) -> float:
    return _total(rates) / max(sum(end - start for start, end, _ in rates), 1)
