"""Writes a node's heartbeats into the run, `live/<node>.jsonl`, and what is seen of ranks that make no progress.

Runs in a thread of the monitor's process. The format is that of harness/common/run_folder/heartbeats.py.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.common.run_folder.heartbeats import LEAST_S, PERIOD_S, SCHEMA, TIMES_USUAL, Evidence
from harness.common.run_folder.run_files import EVIDENCE, HEARTBEATS, MONITOR_SAMPLES, MONITORS
from harness.common.system import processes
from harness.common.system.files import write_whole_text
from harness.heartbeats.lines import is_users
from harness.heartbeats.ranks import ObservedRank
from harness.monitor.samples import GPU_SOURCES, LEADING_COLUMNS, META_FILE, SAMPLES_FILE, read_meta
from harness.monitor.source import MonitorError

COLUMN = "utilization_percent"
TAIL_BYTES = 1 << 13  # some samples of 16 GPUs
ANSWER_S = 3.0  # a rank whose Python runs answers twice a second
CHILD_S = 0.3  # over which it is seen whether children compute
MOST_CHILDREN = 16
MOST_ANSWER_BYTES = 4 << 20
MOST_CRASH_BYTES = 1 << 16
_FATAL = "Fatal Python error: "
_CRASHED_AT = re.compile(r'  File "(.+)", line (\d+) in (.+)')
LOOK_S = 1.0  # between two looks
LATE_S = 2.5  # a look that comes later than this: the monitor was suspended, or had no core
FIRST_S = 30.0  # without progress, before the first steps have ended: how long a step takes is not known
AGAIN_BYTES = 32_000  # a reader that begins later reads the end of the file only
AGAIN_S = 15.0  # between two gatherings of evidence


def gpu_use(folder: Path) -> dict[int, int]:
    """Percent by the device's number; empty: the monitor samples no GPUs, or has no sample yet."""
    found: dict[int, int] = {}
    with suppress(OSError, ValueError, MonitorError):
        if read_meta(folder / META_FILE).get("source") not in GPU_SOURCES:
            return {}
        with (folder / SAMPLES_FILE).open(encoding="utf-8") as file:
            columns = file.readline().strip().split(",")
        at, device = columns.index(COLUMN), LEADING_COLUMNS.index("device")
        for line in MONITOR_SAMPLES.end_text(folder / SAMPLES_FILE, TAIL_BYTES).splitlines():
            cells = line.split(",")
            if len(cells) == len(columns) and cells[at] and cells[device].isdecimal():
                found[int(cells[device])] = round(float(cells[at]))
    return found


def gather(ranks: list[ObservedRank], memory: Path, now_ns: int) -> list[Evidence]:
    """Ask the ranks for their stacks, and look at their processes."""
    asked = str(time.time_ns())
    write_whole_text(memory / "ask", asked)
    end_s = time.monotonic() + ANSWER_S
    answers: dict[int, dict[str, Any]] = {}
    while len(answers) < len(ranks) and time.monotonic() < end_s:
        for rank in ranks:
            if rank.rank not in answers and (answer := _answer(memory, rank.rank, asked)):
                answers[rank.rank] = answer
        time.sleep(0.1)
    return [_evidence(rank, answers.get(rank.rank), now_ns) for rank in ranks]


def _answer(memory: Path, rank: int, question: str) -> dict[str, Any] | None:
    with suppress(OSError, ValueError), (memory / f"rank{rank}.stacks.json").open("rb") as file:
        found = json.loads(file.read(MOST_ANSWER_BYTES))
        if isinstance(found, dict) and found.get("asked") == question:
            return found
    return None


def _evidence(observed_rank: ObservedRank, answer: dict[str, Any] | None, now_ns: int) -> Evidence:
    answer = answer or {}
    main = observed_rank.facts.get("tid")
    tid = main if isinstance(main, int) and processes.stat_of(observed_rank.pid, main) else observed_rank.pid
    thread = processes.stat_of(observed_rank.pid, tid)
    return Evidence(
        rank=observed_rank.rank,
        pid=observed_rank.pid,
        since_ns=time.time_ns() - (now_ns - observed_rank.progress_ns),
        quiet_ns=now_ns - observed_rank.life_ns,
        step=int(observed_rank.facts.get("step") or 0),
        place=observed_rank.facts.get("place"),
        usual_ns=1000 * observed_rank.usual_us,
        longest_ns=1000 * observed_rank.longest_us,
        state=thread.state if thread else "X",
        waits_in=processes.waits_in(observed_rank.pid, tid),
        computes=observed_rank.computes,
        threads=answer.get("threads") or {},
        collectives=answer.get("collectives") or [],
        groups=answer.get("groups") or {},
        children=_children(observed_rank.pid),
        call=answer.get("call"),
        gone=thread is None,
        ended=bool(observed_rank.facts.get("ended_ns")),
    )


def read_crash(path: Path) -> dict[str, Any] | None:
    """What Python's faulthandler wrote of a process that a signal ended, as an error; None: nothing."""
    with suppress(OSError), path.open("rb") as file:
        lines = file.read(MOST_CRASH_BYTES).decode(errors="replace").splitlines()
        found = [match for line in lines if (match := _CRASHED_AT.match(line))]
        if lines and lines[0].startswith(_FATAL):
            users = next((each for each in found if is_users(each[1])), None)
            place = [users[1], int(users[2]), users[3]] if users else None
            return {"type": lines[0][len(_FATAL) :], "message": "", "place": place, "unix_ns": time.time_ns()}
    return None


def _children(pid: int) -> list[dict[str, Any]]:
    """The processes below a rank: whether they live and compute, and what they wait in."""
    pids = processes.below(pid)[:MOST_CHILDREN]
    before = {child: processes.stat_of(child) for child in pids}
    if pids:
        time.sleep(CHILD_S)
    found = []
    for child in pids:
        first, now = before[child], processes.stat_of(child)
        if first is None:
            continue
        spent_ns = now.cpu_ns - first.cpu_ns if now else 0
        found.append(
            {
                "pid": child,
                "program": first.name,
                "state": now.state if now else "X",
                "computes": spent_ns > processes.TICK_NS,
                "waits_in": processes.waits_in(child) if now else "",
            }
        )
    return found


class Collector:
    """The heartbeats of one node. memory: the folder in which its ranks write."""

    def __init__(self, run: Path, memory: Path, node: str, number: int) -> None:
        self._run, self._memory, self._node, self._number = run, memory, node, number
        self._ranks: dict[str, ObservedRank] = {}
        self._ended: set[tuple[str, int]] = set()
        self._pidfds: dict[int, str] = {}
        self._places: dict[tuple[Any, ...], tuple[int, int]] = {}  # its id, and where it was last written
        self._written = 0  # bytes
        self._samples = self._tokens = 0
        self._gathered_s = 0.0
        self._killed, self._limit_file = processes.killed_for_memory(os.getpid()), processes.limiting_file(os.getpid())
        self._stop = threading.Event()
        path = HEARTBEATS.path(run, node)
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._write("node", node=number, host=os.uname().nodename, name=node, schema=SCHEMA, unix_ns=time.time_ns())
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
                    self._begin(path, ObservedRank(path, now_ns))
        for name, rank in list(self._ranks.items()):
            if not rank.path.exists() and processes.lives(rank.pid):
                self._forget(name)  # it has another number now
                continue
            rank.look(now_ns)
            if rank.facts.get("planned") != rank.told_steps:
                self._tell(rank)
            bad = rank.facts.get("bad_loss")
            if isinstance(bad, dict) and (rank.told_loss is None or self._is_far(rank.told_loss)):
                rank.told_loss = self._written
                self._write("loss", rank=rank.rank, unix_ns=time.time_ns(), **bad)
        self._end_of_some()

    def _begin(self, path: Path, observed_rank: ObservedRank) -> None:
        if (path.name, observed_rank.pid) in self._ended:
            return
        if not processes.lives(observed_rank.pid):  # it is in no cgroup any more, and was beside this process
            (observed_rank.killed_file, observed_rank.killed), observed_rank.limit_file = self._killed, self._limit_file
        self._ranks[path.name] = observed_rank
        self._tell(observed_rank)
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended just now
                self._pidfds[os.pidfd_open(observed_rank.pid)] = path.name

    def _tell(self, observed_rank: ObservedRank) -> None:
        facts, observed_rank.told_steps = observed_rank.facts, observed_rank.facts.get("planned")
        known = {key: facts.get(key) for key in ("rank", "world", "local", "pid", "attempt", "unix_ns")}
        self._write("rank", **known, steps=observed_rank.told_steps)

    def _end_of_some(self) -> None:
        for name, rank in list(self._ranks.items()):
            if not processes.lives(rank.pid):
                rank.look(time.monotonic_ns())  # what it wrote last
                self._gone(name, rank)

    def _gone(self, name: str, observed_rank: ObservedRank) -> None:
        before, after = observed_rank.killed, processes.counted(observed_rank.killed_file)
        oom = "cgroup" if after.cgroup > before.cgroup else "machine" if after.machine > before.machine else None
        place = observed_rank.facts.get("place")
        ended_ns = observed_rank.facts.get("ended_ns") or 0
        known = {
            "rank": observed_rank.rank,
            "pid": observed_rank.pid,
            "attempt": observed_rank.facts.get("attempt"),
            "step": observed_rank.facts.get("step"),
            "place": place,
            "host_bytes": observed_rank.facts.get("host_memory"),
            "beside_bytes": processes.memory_below(observed_rank.limit_file),
        }
        error = observed_rank.facts.get("error") or read_crash(observed_rank.path.with_suffix(".crash"))
        at_ns = ended_ns or time.time_ns()
        self._write("gone", **known, unix_ns=at_ns, ended=bool(ended_ns), oom=oom, error=error)
        self._ended.add((name, observed_rank.pid))
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._ranks[name]
        for number, owner in list(self._pidfds.items()):
            if owner == name:
                os.close(number)
                del self._pidfds[number]

    def _beat(self) -> None:
        now_ns = time.monotonic_ns()
        use = gpu_use(MONITORS.path(self._run, self._node))
        ranks = sorted(self._ranks.values(), key=lambda each: each.rank)
        beats = [
            rank.beat(now_ns, self._place(rank.facts.get("place")), use.get(rank.facts.get("local", -1)))
            for rank in ranks
        ]
        samples, tokens = (sum(rank.counted(name) for rank in ranks) for name in ("samples", "tokens"))
        new = {"samples": max(0, samples - self._samples), "tokens": max(0, tokens - self._tokens)}
        self._samples, self._tokens = samples, tokens
        self._write("beat", unix_ns=time.time_ns(), ranks=beats, **new)

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
        path = EVIDENCE.path(self._run, self._node)
        ranks = list(self._ranks.values())
        if not ranks:
            return 0.0  # all have ended, perhaps because they were stuck
        usual_s = max(rank.usual_us for rank in ranks) / 1e6
        least_s = max(LEAST_S, TIMES_USUAL * usual_s) if usual_s else FIRST_S
        now_ns = time.monotonic_ns()
        if not all((now_ns - rank.progress_ns) / 1e9 >= least_s for rank in ranks):
            if self._gathered_s:
                self._gathered_s = 0.0
                path.unlink(missing_ok=True)
            return 0.0
        if now_s - self._gathered_s < AGAIN_S:
            return 0.0
        self._gathered_s = now_s
        found = gather(ranks, self._memory, now_ns)
        content = {"unix_ns": time.time_ns(), "host": os.uname().nodename, "ranks": [each._asdict() for each in found]}
        write_whole_text(path, json.dumps(content))
        return ANSWER_S + CHILD_S * len(ranks)

    def _is_far(self, written: int) -> bool:
        """Whether a reader that begins now would not see what was written there."""
        return self._written - written > AGAIN_BYTES

    def _write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n"
        self._written += len(line)
        self._file.write(line)
