"""A node's file of heartbeats by its two ends: which ranks began there, which have ended, when it last reported; and
nodes that do not report any more, as a sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.heartbeats import PERIOD_S, live_folder
from harness.live.text import ranks_named

ENDS_BYTES = 1 << 17
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


class NodeFile:
    """What the lines say. Raises OSError, ValueError, KeyError, TypeError: it is not there, or damaged.

    gone: ranks whose process has ended, and whether it said that its training was over. at_ns: unix time of the last
    line. ended: whether the node's monitor ended as it was asked to.
    """

    def __init__(self, path: Path) -> None:
        self.host = path.stem
        self.world, self.at_ns, self.ended = 0, 0, False
        self.gone: dict[int, bool] = {}
        self._ranks: list[int] = []
        for line in both_ends(path):
            self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        event = line.get("event")
        if event == "node":
            self.ended = False
            self.host = str(line.get("host") or self.host)
        elif event == "rank":
            self.world = max(self.world, int(line["world"] or 0))
            self._ranks.append(int(line["rank"]))
            self.gone.pop(int(line["rank"]), None)
        elif event == "gone":
            self.gone[int(line["rank"])] = bool(line["ended"])
        elif event == "end":
            self.ended = True
        if isinstance(at_ns := line.get("unix_ns"), int):
            self.at_ns = max(self.at_ns, at_ns)

    @property
    def there(self) -> tuple[int, ...]:
        """The ranks that have begun and not ended, as far as the node has said."""
        return tuple(sorted(set(self._ranks) - set(self.gone)))

    def silent(self, seconds: float, now_ns: int) -> Silent | None:
        """The node, if it has ranks and has written nothing for so long, and did not say that it ended."""
        if not self.at_ns or self.ended or not self.there or now_ns - self.at_ns <= seconds * 1e9:
            return None
        return Silent(self.host, self.there, self.at_ns)


def silent_nodes(run: Path, seconds: float) -> list[Silent]:
    """The nodes of a run that have written nothing for so long and did not say that they ended. A damaged file is left
    out."""
    found = []
    for path in sorted(live_folder(run).glob("*.jsonl")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if node := NodeFile(path).silent(seconds, time.time_ns()):
                found.append(node)
    return found


def both_ends(path: Path) -> Iterator[dict[str, Any]]:
    """The lines at both ends of a file: ranks begin at its beginning."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(ENDS_BYTES)
        if size > ENDS_BYTES:
            file.seek(max(ENDS_BYTES, size - ENDS_BYTES))
            begin += b"\n" + file.read(ENDS_BYTES)
    for line in begin.splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found
