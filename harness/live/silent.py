"""Nodes that do not report any more, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from harness.common.heartbeats import PERIOD_S
from harness.live.text import ranks_named

SILENT_S = 5 * PERIOD_S  # a node that has not reported for so long does not report any more
_MOST_NAMES = 3


class Silent(NamedTuple):
    """A node that does not report any more and did not say that it ended. ranks: those that trained there. since_ns:
    unix time of its last line."""

    host: str
    ranks: tuple[int, ...]
    since_ns: int


def who_is_silent(nodes: Sequence[Silent]) -> str:
    """
    >>> who_is_silent([Silent("gpu-07", (4, 5), 0)]).rpartition(" ")[0]
    'node gpu-07 with ranks 4 and 5 has not reported since'
    >>> who_is_silent([Silent("a", (), 0), Silent("b", (2,), 0)]).rpartition(" ")[0]
    'nodes a and b with rank 2 have not reported since'
    """
    names = [node.host for node in nodes]
    ranks = sorted(rank for node in nodes for rank in node.ranks)
    if len(names) == 1:
        named, has = f"node {names[0]}", "has"
    elif len(names) <= _MOST_NAMES:
        named, has = f"nodes {', '.join(names[:-1])} and {names[-1]}", "have"
    else:
        named, has = f"{len(names)} nodes, as {names[0]},", "have"
    with_ranks = f" with {ranks_named(ranks)}" if ranks else ""
    since = datetime.fromtimestamp(min(node.since_ns for node in nodes) / 1e9)
    return f"{named}{with_ranks} {has} not reported since {since:%H:%M:%S}"
