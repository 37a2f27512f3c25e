"""Where the ranks are, which of them work at the same time, and which are neighbours. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RankPlace(NamedTuple):
    node: int
    local_rank: int
    host: str


class Pair(NamedTuple):
    """Two neighbours, numbers of nodes or ranks, and the ranks that send to each other, one of each side."""

    one: int
    other: int
    lanes: list[tuple[int, int]]

    @property
    def label(self) -> str:
        return f"{self.one}-{self.other}"


def turns(rank_places: Sequence[RankPlace]) -> list[list[int]]:
    """Ranks that may work at the same time without a common core: one of each host.

    >>> turns([RankPlace(0, 0, "a"), RankPlace(0, 1, "a"), RankPlace(1, 0, "b"), RankPlace(1, 1, "b")])
    [[0, 2], [1, 3]]
    """
    by_host: dict[str, list[int]] = {}
    for rank, place in enumerate(rank_places):
        by_host.setdefault(place.host, []).append(rank)
    longest = max(map(len, by_host.values()))
    return [[ranks[k] for ranks in by_host.values() if k < len(ranks)] for k in range(longest)]


def nodes_of(rank_places: Sequence[RankPlace]) -> dict[int, list[int]]:
    """Node → its ranks."""
    found: dict[int, list[int]] = {}
    for rank, place in enumerate(rank_places):
        found.setdefault(place.node, []).append(rank)
    return found


def ring(rank_places: Sequence[RankPlace]) -> list[list[Pair]]:
    """The ring of neighbouring nodes, of one node the ring of its ranks, in phases: in each, no member is in two pairs.

    Empty if a slow pair would say nothing: two ranks of one node, which its all-reduce has as well.

    >>> [[pair.label for pair in phase] for phase in ring([RankPlace(node, 0, "a") for node in range(5)])]
    [['0-1', '2-3'], ['1-2', '3-4'], ['4-0']]
    """
    nodes = nodes_of(rank_places)
    units = nodes if len(nodes) > 1 else {rank: [rank] for rank in range(len(rank_places))}
    names = list(units)
    if len(names) < (2 if len(nodes) > 1 else 3):
        return []
    last = len(names) - (len(names) == 2)  # the ring of two is one pair
    phases: list[list[Pair]] = [[], [], []]
    for k in range(last):
        one, other = names[k], names[(k + 1) % len(names)]
        closes_odd_ring = k == len(names) - 1 and len(names) % 2
        pair = Pair(one, other, list(zip(units[one], units[other], strict=False)))
        phases[2 if closes_odd_ring else k % 2].append(pair)
    return [phase for phase in phases if phase]
