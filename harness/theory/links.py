"""How long messages take over links: by a measured line α + β·bytes, else by nominal rates without a latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.common.bus_factor import bus_factor
from harness.theory.communication import Traffic

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
        rate = min(
            (r for r in (together, rates.intra_gbps if ranks_in_node > 1 else None) if r), default=None
        )
        rate = rate if together is not None else None
    if rate is None:
        return None
    return traffic.message_bytes * bus_factor(traffic.kind, traffic.group_size) * BITS / rate
