"""Decides whether a run is stuck, from the files of all its nodes, and writes `live/stuck.json`.

Runs in a thread of the first node's monitor. With `stop` it then ends the job.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.common.heartbeats import Evidence, live_folder
from harness.common.mystery import hides
from harness.live.hang import Hang, write_hang
from harness.live.stuck import Nodes, judge

LOOK_S = 2.0
SILENT_S = 20.0  # a node that has written nothing for so long, while others did, does not answer
TAIL_BYTES = 1 << 17
QUIET_NS = 4_000_000_000  # without a sign of life, at the time of the evidence


class Guard:
    """Looks every two seconds. stop: whether to end a job that is stuck."""

    def __init__(self, run: Path, stop: bool) -> None:
        self._run, self._stop = run, stop
        self._over = threading.Event()
        self._found: Hang | None = None
        self._thread = threading.Thread(target=self._go, name="guard", daemon=True)

    def __enter__(self) -> Guard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(3.0)

    def _go(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self._look()
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                IndexError,
            ) as error:  # another node's file is damaged
                print(f"warning: cannot tell whether the run is stuck: {error!r}", file=sys.stderr)
                self._over.wait(30.0)

    def _look(self) -> None:
        is_still = any(live_folder(self._run).glob("*.stuck.json"))
        found = judge(seen(self._run, time.time_ns())) if is_still else None
        if found is None and self._found is not None:
            self._write(self._found, until_ns=time.time_ns())
        elif found is not None and (self._found is None or self._found.sentence != found.sentence):
            hang = self._write(found)
            if self._found is None:
                print("\n".join(hang.told(time.time_ns())), file=sys.stderr, flush=True)
                if self._stop:
                    self._end_job()
        self._found = found

    def _write(self, found: Hang, until_ns: int | None = None) -> Hang:
        hang = found._replace(found_ns=time.time_ns(), until_ns=until_ns, stops=self._stop)
        hidden = hides(self._run, "hang")
        write_hang(self._run, hang, hidden)
        return hang.without_cause() if hidden else hang

    def _end_job(self) -> None:
        """Tell the job's script, which ends what it has started and writes the state `stuck`."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            status = json.loads((self._run / "status.json").read_text(encoding="utf-8"))
            if status["host"] == socket.gethostname():
                os.kill(int(status["pid"]), signal.SIGUSR2)


def seen(run: Path, now_ns: int) -> Nodes:
    """All nodes of a run as their files have them. Raises OSError, ValueError, KeyError: one is damaged."""
    ranks: list[Evidence] = []
    gone: dict[int, bool] = {}
    silent: list[int] = []
    world, alive = 0, False
    for path in sorted(live_folder(run).glob("*.jsonl")):
        node = _Node(path)
        world = max(world, node.world)
        gone.update(node.gone)
        evidence = path.with_name(f"{path.stem}.stuck.json")
        if node.at_ns and now_ns - node.at_ns > SILENT_S * 1e9 and not node.ended:
            silent += [rank for rank in node.ranks if rank not in node.gone]
        elif evidence.exists():
            content = json.loads(evidence.read_text(encoding="utf-8"))
            shift = now_ns - int(content["unix_ns"])
            there = [Evidence(**each) for each in content["ranks"] if each["rank"] not in node.gone]
            ranks += [_later(rank, shift) for rank in there]
        else:
            alive |= bool(set(node.ranks) - set(node.gone))
    return Nodes(now_ns, world, ranks, gone, silent, alive)


def _later(rank: Evidence, ns: int) -> Evidence:
    """The rank now: one that was quiet still is, or the file would be new; one that was not may work still."""
    return rank._replace(quiet_ns=rank.quiet_ns + ns) if rank.quiet_ns > QUIET_NS else rank


class _Node:
    """The beginning and the end of a node's file. ranks: all that have begun there."""

    def __init__(self, path: Path) -> None:
        self.world, self.at_ns, self.ended = 0, 0, False
        self.ranks: list[int] = []
        self.gone: dict[int, bool] = {}
        for line in both_ends(path):
            event = line.get("event")
            if event == "rank":
                self.world = max(self.world, int(line["world"] or 0))
                self.ranks.append(int(line["rank"]))
                self.gone.pop(int(line["rank"]), None)
            elif event == "gone":
                self.gone[int(line["rank"])] = bool(line["ended"])
            elif event == "end":
                self.ended = True
            elif event == "node":
                self.ended = False
            if isinstance(at_ns := line.get("unix_ns"), int):
                self.at_ns = max(self.at_ns, at_ns)


def both_ends(path: Path) -> Iterator[dict[str, Any]]:
    """The lines at both ends of a file: ranks begin at its beginning."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(TAIL_BYTES)
        if size > TAIL_BYTES:
            file.seek(max(TAIL_BYTES, size - TAIL_BYTES))
            begin += b"\n" + file.read(TAIL_BYTES)
    for line in begin.splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found
