"""A node's file of heartbeats by its two ends: which ranks began there, which have ended, and when it last reported."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.common.heartbeats import live_folder
from harness.live.silent import Silent

ENDS_BYTES = 1 << 17


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
