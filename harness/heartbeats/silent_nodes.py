"""A node's file of heartbeats by its two ends: which ranks began there, which have ended, when it last reported; nodes
that do not report any more, as a sentence; and what is known of all nodes of a run that makes no progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from harness.common.display.text import ranks_named
from harness.common.run_folder.heartbeats import PERIOD_S, Evidence
from harness.common.run_folder.run_files import EVIDENCE
from harness.common.system.bounded_read import BoundedReadError
from harness.heartbeats.lines import GoneLine, Line, MonitorEnd, NodeLine, RankHeader, both_ends, node_files

LOST_S = 20.0  # a node that has written nothing for so long, while others did, is the cause of a hang
QUIET_NS = 4_000_000_000  # without a sign of life, at the time of the evidence
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


class NodeEvidence(NamedTuple):
    """What is known of all nodes at one moment. world: the number of ranks, 0 where nobody says it.

    gone: ranks whose process has ended, and whether it said that its training was over. silent: nodes that do not
    report any more. alive: whether a node has ranks that make progress.
    """

    now_ns: int
    world: int
    ranks: Sequence[Evidence]
    gone: dict[int, bool]
    silent: Sequence[SilentNode]
    alive: bool


def seen(run: Path, now_ns: int, runs_since_ns: int = 0) -> NodeEvidence:
    """All nodes of a run as their files have them. runs_since_ns: unix time since which this job was not suspended:
    what was written before says nothing of now. Raises UnreadFileError, OSError, ValueError, KeyError: one is damaged.
    """
    ranks: list[Evidence] = []
    gone: dict[int, bool] = {}
    silent: list[SilentNode] = []
    world, alive = 0, False
    for path in node_files(run):
        node = NodeFile(path)
        world = max(world, node.world)
        gone.update(node.gone)
        evidence = EVIDENCE.path(run, path.stem)
        content = EVIDENCE.as_json.read(evidence) if evidence.exists() else None
        may_report = now_ns - runs_since_ns <= LOST_S * 1e9
        if not may_report and (quiet := node.silent(LOST_S, now_ns)):
            silent.append(quiet)
        elif content is not None and int(content["unix_ns"]) >= runs_since_ns:
            shift = now_ns - int(content["unix_ns"])
            there = [Evidence(**each) for each in content["ranks"] if each["rank"] not in node.gone]
            ranks += [_later(rank, shift) for rank in there]
        else:
            alive |= bool(node.there)
    return NodeEvidence(now_ns, world, [rank for rank in ranks if not rank.gone], gone, silent, alive)


def _later(rank: Evidence, ns: int) -> Evidence:
    """The rank now: one that was quiet still is, or the file would be new; one that was not may work still."""
    return rank._replace(quiet_ns=rank.quiet_ns + ns) if rank.quiet_ns > QUIET_NS else rank
