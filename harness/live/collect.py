"""Writes a node's heartbeats into the run, `live/<node>.jsonl`, and what is seen of ranks that make no progress.

Runs in a thread of the monitor's process. The format is that of harness/common/heartbeats.py.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.common.heartbeats import (
    LEAST_S,
    PERIOD_S,
    SCHEMA,
    TIMES_USUAL,
    evidence_file,
    node_file,
)
from harness.live import processes
from harness.live.evidence import ANSWER_S, gather, read_crash
from harness.live.gpu_use import gpu_use
from harness.live.ranks import Rank

LOOK_S = 1.0  # between two looks
LATE_S = 2.5  # a look that comes later than this: the monitor was suspended, or had no core
FIRST_S = 30.0  # without progress, before the first steps have ended: how long a step takes is not known
AGAIN_BYTES = 32_000  # a reader that begins later reads the end of the file only
AGAIN_S = 15.0  # between two gatherings of evidence
SEEN_FROM_OUTSIDE_S = 2.0  # for a rank that does not answer itself


class Collector:
    """The heartbeats of one node. memory: the folder in which its ranks write."""

    def __init__(self, run: Path, memory: Path, node: str, number: int) -> None:
        self._run, self._memory, self._node, self._number = run, memory, node, number
        self._ranks: dict[str, Rank] = {}
        self._ended: set[tuple[str, int]] = set()
        self._pidfds: dict[int, str] = {}
        self._places: dict[tuple[Any, ...], tuple[int, int]] = {}  # its id, and where it was last written
        self._written = 0  # bytes
        self._samples = self._tokens = 0
        self._gathered_s = 0.0
        self._stop = threading.Event()
        path = node_file(run, node)
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._write(
            "node", node=number, host=os.uname().nodename, name=node, schema=SCHEMA, unix_ns=time.time_ns()
        )
        self._thread = threading.Thread(target=self._go, name="heartbeats", daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(3.0)
        with suppress(OSError):
            self._look()
            self._write("end", unix_ns=time.time_ns())
            self._file.close()

    def _go(self) -> None:
        try:
            self._collect()
        except OSError as error:  # the disk is full: the monitor's samples say so too
            print(f"warning: no more heartbeats: {error}", file=sys.stderr)

    def _collect(self) -> None:
        looked_s, written_s, may_take_s = time.monotonic(), 0.0, LATE_S
        while not self._stop.is_set():
            self._wait(LOOK_S)
            now_s = time.monotonic()
            if now_s - looked_s > may_take_s:
                self._slept(now_s - looked_s - LOOK_S)
            looked_s = now_s
            self._look()
            if now_s - written_s >= PERIOD_S - LOOK_S / 2:
                written_s = now_s
                self._beat()
            may_take_s = LATE_S + self._judge(now_s)

    def _wait(self, seconds: float) -> None:
        """Wait, but not when a rank's process ends: which was first matters."""
        poll = select.poll()
        for number in self._pidfds:
            poll.register(number, select.POLLIN)
        if not self._pidfds:
            self._stop.wait(seconds)
        elif poll.poll(1000 * seconds):
            self._end_of_some()

    def _slept(self, seconds: float) -> None:
        ns = int(seconds * 1e9)
        for rank in self._ranks.values():
            rank.moved(ns)
        self._write("slept", unix_ns=time.time_ns() - ns, ns=ns)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        for path in sorted(self._memory.glob("rank*.json")):
            if path.name.endswith(".stacks.json"):
                continue
            if path.name not in self._ranks:
                with suppress(OSError, ValueError, KeyError, IndexError):
                    self._begin(path, Rank(path, now_ns))
        for rank in self._ranks.values():
            rank.look(now_ns)
            if rank.facts.get("planned") != rank.told_steps:
                self._tell(rank)
            bad = rank.facts.get("bad_loss")
            if isinstance(bad, dict) and (rank.told_loss is None or self._is_far(rank.told_loss)):
                rank.told_loss = self._written
                self._write("loss", rank=rank.rank, unix_ns=time.time_ns(), **bad)
        self._end_of_some()

    def _begin(self, path: Path, rank: Rank) -> None:
        if (path.name, rank.pid) in self._ended:
            return
        self._ranks[path.name] = rank
        self._tell(rank)
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended just now
                self._pidfds[os.pidfd_open(rank.pid)] = path.name

    def _tell(self, rank: Rank) -> None:
        facts, rank.told_steps = rank.facts, rank.facts.get("planned")
        known = {key: facts.get(key) for key in ("rank", "world", "local", "pid", "unix_ns")}
        self._write("rank", **known, steps=rank.told_steps)

    def _end_of_some(self) -> None:
        for name, rank in list(self._ranks.items()):
            if not processes.lives(rank.pid):
                rank.look(time.monotonic_ns())  # what it wrote last
                self._gone(name, rank)

    def _gone(self, name: str, rank: Rank) -> None:
        before, after = rank.killed, processes.counted(rank.killed_file)
        oom = (
            "cgroup"
            if after.cgroup > before.cgroup
            else "machine"
            if after.machine > before.machine
            else None
        )
        place = rank.facts.get("place")
        ended_ns = rank.facts.get("ended_ns") or 0
        known = {"rank": rank.rank, "pid": rank.pid, "step": rank.facts.get("step"), "place": place}
        error = rank.facts.get("error") or read_crash(rank.path.with_suffix(".crash"))
        at_ns = ended_ns or time.time_ns()
        self._write("gone", **known, unix_ns=at_ns, ended=bool(ended_ns), oom=oom, error=error)
        del self._ranks[name]
        self._ended.add((name, rank.pid))
        for number, owner in list(self._pidfds.items()):
            if owner == name:
                os.close(number)
                del self._pidfds[number]

    def _beat(self) -> None:
        now_ns = time.monotonic_ns()
        use = gpu_use(self._run / "gpus-monitor" / self._node)
        beats = [
            rank.beat(now_ns, self._place(rank.facts.get("place")), use.get(rank.facts.get("local", -1)))
            for rank in sorted(self._ranks.values(), key=lambda each: each.rank)
        ]
        samples = sum(rank.samples for rank in self._ranks.values())
        tokens = sum(rank.tokens for rank in self._ranks.values())
        new = {"samples": max(0, samples - self._samples), "tokens": max(0, tokens - self._tokens)}
        self._samples, self._tokens = samples, tokens
        self._write("beat", unix_ns=time.time_ns(), ranks=[beat.as_list() for beat in beats], **new)

    def _place(self, place: list[Any] | None) -> int:
        if not place:
            return -1
        key = tuple(place)
        number, written = self._places.get(key, (len(self._places), None))
        if written is None or self._is_far(written):
            self._places[key] = number, self._written
            self._write("place", id=number, file=place[0], line=place[1], function=place[2])
        return number

    def _judge(self, now_s: float) -> float:
        """Where no rank of this node makes progress, gather what can be seen; where one does again, forget it. Returns
        the seconds that it may have taken."""
        path = evidence_file(self._run, self._node)
        ranks = list(self._ranks.values())
        usual_s = max((rank.usual_us for rank in ranks), default=0) / 1e6
        least_s = max(LEAST_S, TIMES_USUAL * usual_s) if usual_s else FIRST_S
        now_ns = time.monotonic_ns()
        still = [(now_ns - rank.progress_ns) / 1e9 >= least_s for rank in ranks]
        if not ranks:
            return 0.0  # all have ended, perhaps because they were stuck
        if not all(still):
            if self._gathered_s:
                self._gathered_s = 0.0
                path.unlink(missing_ok=True)
            return 0.0
        if now_s - self._gathered_s < AGAIN_S:
            return 0.0
        self._gathered_s = now_s
        found = gather(ranks, self._memory, now_ns)
        content = {
            "unix_ns": time.time_ns(),
            "host": os.uname().nodename,
            "ranks": [each._asdict() for each in found],
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(path)
        return ANSWER_S + SEEN_FROM_OUTSIDE_S * len(ranks)

    def _is_far(self, written: int) -> bool:
        """Whether a reader that begins now would not see what was written there."""
        return self._written - written > AGAIN_BYTES

    def _write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n"
        self._written += len(line)
        self._file.write(line)
