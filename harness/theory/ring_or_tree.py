"""How long an all-reduce takes as a ring and as a tree, by the α-β model. It does not know what NCCL chooses."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True, slots=True)
class Hop:
    """One message from a rank to the next: `alpha_ns` without any byte, `beta_ns_per_byte`, above 0, for each byte."""

    alpha_ns: float
    beta_ns_per_byte: float

    def ring_ns(self, ranks: int, message_bytes: float) -> float:
        """2(P−1)·α + 2(P−1)/P·n·β: P−1 steps reduce a P-th of the message each, P−1 more hand the sums on. Source:
        Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009."""
        steps = 2 * (ranks - 1)
        return steps * self.alpha_ns + steps / ranks * message_bytes * self.beta_ns_per_byte

    def tree_ns(self, ranks: int, message_bytes: float) -> float:
        """2·⌈log2 P⌉·α + 2·n·β: up to the root and down again, in small pieces, over two trees that each carry half of
        the message and in which no rank is inside both. Source: Sanders, Speck and Träff, Two-tree algorithms for full
        bandwidth broadcast, reduction and scan, 2009; NCCL has these trees since 2.4."""
        return 2 * depth(ranks) * self.alpha_ns + 2 * message_bytes * self.beta_ns_per_byte

    def tree_up_to_bytes(self, ranks: int) -> float:
        """The size at which both take the same time: P·(P−1−⌈log2 P⌉)·α/β. The tree is faster below, the ring above;
        0: the ring is never slower.

        >>> Hop(1000.0, 0.01).tree_up_to_bytes(8), Hop(1000.0, 0.01).tree_up_to_bytes(2)
        (3200000.0, 0.0)
        """
        return ranks * (ranks - 1 - depth(ranks)) * self.alpha_ns / self.beta_ns_per_byte


def depth(ranks: int) -> int:
    """⌈log2 P⌉, the hops from the farthest leaf to the root."""
    return ceil(log2(ranks)) if ranks > 1 else 0


def hop_of_ring(alpha_ns: float, beta_ns_per_byte: float, ranks: int) -> Hop:
    """The hop of a ring of P ranks whose all-reduce takes this α and β: α/(2(P−1)), and β·P/(2(P−1)).

    >>> hop_of_ring(6000.0, 0.015, 4)
    Hop(alpha_ns=1000.0, beta_ns_per_byte=0.01)
    """
    steps = 2 * (ranks - 1)
    return Hop(alpha_ns / steps, beta_ns_per_byte * ranks / steps)
