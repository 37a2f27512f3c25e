"""The ranks of a node, as the monitor beside them sees them: their heartbeats in the node's memory, and /proc."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from harness.common.run_folder.heartbeats import PHASES, Beat, encode
from harness.common.system import processes

MOST_BYTES = 1 << 20  # of a rank's file
MOST_ENTRIES = 8  # of durations in one beat
COMPUTES = 0.2  # of a core: less is no work
MOVES_BYTES_S = 200_000  # read and written: less is no work
ARRIVES_S = 2.0  # times per second that a thread wakes up which waits for a socket: one with a timeout does so less
STORED_STEPS = 201  # for the median
_LETTERS = {phase: letter for letter, phase in PHASES.items()}


class ObservedRank:
    """One rank. Times are ns of the monitor's monotonic clock, in which a suspended job does not age."""

    def __init__(self, path: Path, now_ns: int) -> None:
        """Raises ValueError, KeyError: there is no whole heartbeat in the file yet."""
        self.path = path
        self.facts = read_facts(path)
        self.rank, self.pid = int(self.facts["rank"]), int(self.facts["pid"])
        self.progress_ns = self.life_ns = now_ns
        self.use_percent: int | None = None
        self.computes = self._runs = False
        self._switches = 0  # of the main thread
        self.longest_us = 0
        self._usage = processes.usage(self.pid)
        self._looked_ns = now_ns
        self._usual: deque[int] = deque(maxlen=STORED_STEPS)
        self._fresh: list[list[Any]] = []  # steps that ended and are in no beat yet
        self._seen = -1  # the last of them
        self.told_steps: object = None  # how many are planned, as it was written
        self.told_loss: int | None = None  # where that was written
        self.killed_file, self.killed = processes.killed_for_memory(self.pid)
        self.limit_file = processes.limiting_file(self.pid)
        self._take_steps()

    def look(self, now_ns: int) -> None:
        """Read its heartbeat and /proc again."""
        before = self._marks()
        with suppress(OSError, ValueError, KeyError):  # it is being written, or it has ended
            self.facts = read_facts(self.path)
        if self._marks() != before:
            self.progress_ns = self.life_ns = now_ns
        self._take_steps()
        self._look_at_process(now_ns)

    def _marks(self) -> tuple[Any, ...]:
        return tuple(self.facts.get(key) for key in ("step", "phase", "calls", "collectives", "ended_ns"))

    def _look_at_process(self, now_ns: int) -> None:
        elapsed_s = (now_ns - self._looked_ns) / 1e9
        if elapsed_s <= 0:
            return
        usage = processes.usage(self.pid)
        share = (usage.cpu_ns - self._usage.cpu_ns) / 1e9 / elapsed_s
        main = processes.stat_of(self.pid, self.facts.get("tid"))
        # Where cores are shared, a thread that runs or is ready to may get little CPU time.
        ran, self._runs = self._runs, usage.below_runs or (main is not None and main.state == "R")
        self.computes = share >= COMPUTES or (ran and self._runs)
        self.use_percent = max(0, round(100 * share))
        moved = (usage.io_bytes - self._usage.io_bytes) / elapsed_s >= MOVES_BYTES_S
        if self.computes or moved or self._receives(elapsed_s):
            self.life_ns = now_ns
        self._usage, self._looked_ns = usage, now_ns

    def _receives(self, elapsed_s: float) -> bool:
        """Whether the main thread waits for a socket and bytes arrive, since it wakes up each time. Linux does not
        count a process's bytes on sockets."""
        tid = self.facts.get("tid")
        before, self._switches = self._switches, processes.switches(self.pid, tid)
        if self._switches - before < ARRIVES_S * elapsed_s or not before:
            return False
        return processes.waits_in(self.pid, tid).startswith(("receiving from a socket", "reading a socket", "polling"))

    def _take_steps(self) -> None:
        for step in self.facts.get("done") or []:
            if step[0] > self._seen:
                self._seen = step[0]
                self._fresh.append(step)
                self._usual.append(step[1])
                self.longest_us = max(self.longest_us, step[1] if len(self._usual) > 1 else 0)

    def moved(self, ns: int) -> None:
        """The monitor did not run for a while, and so perhaps neither did the rank."""
        self.progress_ns += ns
        self.life_ns += ns
        self._looked_ns += ns

    def counted(self, name: str) -> int:
        """Samples or tokens that it has processed so far."""
        return int(self.facts.get(name) or 0)

    @property
    def usual_us(self) -> int:
        """Its median step; 0: it has ended none but the first."""
        return int(median(self._usual)) if len(self._usual) > 1 else 0

    def beat(self, now_ns: int, slot: int, use_percent: int | None) -> Beat:
        """What is written of it now; the steps that have ended are written once."""
        facts, memory = self.facts, self.facts.get("memory")
        fresh, self._fresh = self._fresh, []
        per = max(1, -(-len(fresh) // MOST_ENTRIES))
        groups = [fresh[i : i + per] for i in range(0, len(fresh) - per + 1, per)]
        self._fresh = fresh[len(groups) * per :]
        return Beat(
            rank=self.rank,
            step=int(facts.get("step") or 0),
            phase=_LETTERS.get(facts.get("phase"), "-"),
            idle_ms=max(0, (now_ns - self.progress_ns) // 1_000_000),
            quiet_ms=max(0, (now_ns - self.life_ns) // 1_000_000),
            slot=slot,
            memory_mib=(self._usage.memory_bytes if memory is None else memory) >> 20,
            use_percent=self.use_percent if use_percent is None else use_percent,
            loss=facts.get("loss"),
            first=groups[0][0][0] if groups else -1,
            per=per,
            steps=encode([sum(step[1] for step in group) / per for group in groups]),
            own_phase=encode([_mean([step[2] for step in group]) for group in groups]),
        )


def _mean(own_us: list[int | None]) -> float:
    """0: of a step of them it is not known."""
    known = [us for us in own_us if us is not None]
    return sum(known) / len(known) if len(known) == len(own_us) else 0.0


def read_facts(path: Path) -> dict[str, Any]:
    """A rank's heartbeat. Raises OSError, ValueError or KeyError: there is no whole one."""
    with path.open("rb") as file:
        facts = json.loads(file.read(MOST_BYTES))
    if not isinstance(facts, dict) or not isinstance(facts["pid"], int) or not isinstance(facts["rank"], int):
        raise ValueError(f"{path}: no heartbeat")
    return facts
