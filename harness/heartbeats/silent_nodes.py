"""A node's file of heartbeats by its two ends: which ranks began there, which have ended, when it last reported; and
nodes that do not report any more, as a sentence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from harness.common.display.text import ranks_named
from harness.common.run_folder.heartbeats import PERIOD_S
from harness.common.system.bounded_read import BoundedReadError
from harness.heartbeats.lines import GoneLine, Line, MonitorEnd, NodeLine, RankHeader, both_ends, node_files

SILENT_S = 5 * PERIOD_S  # a node that has not reported for so long does not report any more


class SilentNode(NamedTuple):
    """A node that does not report any more and did not say that it ended. ranks: those that trained there. since_ns:
    unix time of its last line."""

    host: str
    ranks: tuple[int, ...]
    since_ns: int


def who_is_silent(silent_nodes: Sequence[SilentNode]) -> str:
    """
    >>> who_is_silent([SilentNode("gpu-07", (4, 5), 0)]).rpartition(" ")[0]
    'node gpu-07 with ranks 4 and 5 has not reported since'
    >>> who_is_silent([SilentNode("a", (), 0), SilentNode("b", (2,), 0)]).rpartition(" ")[0]
    '2 nodes (a, b) with rank 2 have not reported since'
    """
    names = [node.host for node in silent_nodes]
    ranks = sorted(rank for node in silent_nodes for rank in node.ranks)
    if len(names) == 1:
        named, has = f"node {names[0]}", "has"
    else:
        named, has = f"{len(names)} nodes ({', '.join(names[:3])}{', …' * (len(names) > 3)})", "have"
    with_ranks = f" with {ranks_named(ranks)}" if ranks else ""
    since = datetime.fromtimestamp(min(node.since_ns for node in silent_nodes) / 1e9)
    return f"{named}{with_ranks} {has} not reported since {since:%H:%M:%S}"


class NodeFile:
    """What the lines say. Raises OSError, BoundedReadError: it is no file that may be read.

    gone: ranks whose process has ended, and whether it said that its training was over. at_ns: unix time of the last
    line. ended: whether the node's monitor ended as it was asked to.
    """

    def __init__(self, path: Path) -> None:
        self.host = path.stem
        self.world, self.at_ns, self.ended = 0, 0, False
        self.gone: dict[int, bool] = {}
        self._ranks: set[int] = set()
        for line in both_ends(path):
            self._take(line)

    def _take(self, line: Line) -> None:
        self.at_ns = max(self.at_ns, line.unix_ns)
        match line:
            case NodeLine():
                self.host, self.ended = line.host or self.host, False
            case RankHeader():
                self.world = max(self.world, line.world or 0)
                self._ranks.add(line.rank)
                self.gone.pop(line.rank, None)
            case GoneLine():
                self.gone[line.rank] = line.ended
            case MonitorEnd():
                self.ended = True

    @property
    def there(self) -> tuple[int, ...]:
        """The ranks that have begun and not ended, as far as the node has said."""
        return tuple(sorted(self._ranks - set(self.gone)))

    def silent(self, seconds: float, now_ns: int) -> SilentNode | None:
        """The node, if it has ranks and has written nothing for so long, and did not say that it ended."""
        if not self.at_ns or self.ended or not self.there or now_ns - self.at_ns <= seconds * 1e9:
            return None
        return SilentNode(self.host, self.there, self.at_ns)


def silent_nodes(run: Path, seconds: float) -> list[SilentNode]:
    """The nodes of a run that have written nothing for so long and did not say that they ended. What cannot be read is
    left out."""
    found = []
    for path in node_files(run):
        with suppress(OSError, BoundedReadError):
            if node := NodeFile(path).silent(seconds, time.time_ns()):
                found.append(node)
    return found
