"""The bus bandwidth that the nominal links allow. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinkRates:
    """Nominal rates of one GPU in one direction: to the other GPUs of its node, and its share of the network."""

    intra_gbps: float | None
    inter_gbps: float | None
    gpus_per_node: int


@dataclass(frozen=True)
class Bound:
    """The largest bus bandwidth that the links allow. `reason`: why it is unknown although the links are known."""

    gbps: float | None
    reason: str | None = None


ANY_RAIL = "only one pair per node crosses the network, and the backend chooses how many rails it gets"


def bus_bound(collective: str, scope: str, ranks: int, links: LinkRates) -> Bound:
    """The largest possible bus bandwidth in groups of `ranks` ranks.

    Over several nodes with several GPUs each (`world`), NCCL's rings enter and leave a node through all of its
    network cards, so a ring's bandwidth is that of the slower of one GPU's link and the whole node's network. In an
    all-to-all each GPU sends a part of its message to its node, and the rest through its own share of the network.
    """
    if scope != "world":
        return Bound(links.intra_gbps if scope == "intra" else links.inter_gbps)
    if collective == "send_recv":
        return Bound(None, ANY_RAIL if links.inter_gbps else None)
    here = links.gpus_per_node
    if collective == "all_to_all":
        inside, across = (ranks - 1) / max(1, here - 1), (ranks - 1) / (ranks - here)
    else:
        inside, across = 1.0, float(here)
    limits = [(links.intra_gbps, inside), (links.inter_gbps, across)]
    return Bound(min((rate * factor for rate, factor in limits if rate), default=None))
