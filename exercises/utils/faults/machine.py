"""Injectors of what other programs on the machine do to a rank: take its core, share it, stop it; and the side
processes that do so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from exercises.utils.faults.target import FaultTarget
from harness.common.faults.fault import Fault
from harness.observe.metrics import waited_ns

# PR_SET_PDEATHSIG (1) with SIGKILL (9): the kernel ends this process when the thread that started it is gone, which
# may have been before. Then the module runs. Its words come by the input, byte by byte as what follows is the
# module's: a list of processes is not to tell what a mystery does.
START = """
import ctypes, json, os, runpy, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
line = b""
while not line.endswith(b"\\n"):
    byte = os.read(0, 1)
    if not byte:
        sys.exit()
    line += byte
sys.argv = json.loads(line)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
GOLDEN = 0.6180339887  # its multiples, without their whole parts, visit every part of a step


class SideProcess:
    """A module of this folder as a process of its own, without the packages of this one."""

    def __init__(self, module: str, *arguments: object) -> None:
        script = Path(__file__).with_name(f"{module}.py")
        argv = [sys.executable, "-I", "-S", "-c", START, str(os.getpid())]
        # A batch system sends SIGTERM to every process of a job: what follows is the training's affair alone.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.stdout is not None
        self._answers = self._process.stdout.fileno()
        self._pending = b""
        os.set_blocking(self._answers, False)
        self.send(json.dumps([str(script), *map(str, arguments)]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def received(self) -> Iterator[str]:
        """The lines that it has written since the last call; does not wait."""
        with suppress(BlockingIOError):
            while more := os.read(self._answers, 4096):
                self._pending += more
        *lines, self._pending = self._pending.split(b"\n")
        yield from (line.decode() for line in lines)

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ask it to end, with an empty line, and wait for that. Data workers may hold its input open."""
        self.send("")
        self._process.wait()


def record_waiting(fault: Fault, target: FaultTarget) -> None:
    """Record from each step's begin to the next one's the time for which the training thread waited for a core."""
    if waited_ns() is None:  # Linux may not count it, and then nothing is recorded
        return
    begun: list[tuple[int, int, int]] = []  # of the step that has begun its number, the waiting before it, the time

    def step_ends() -> None:
        for step, before_ns, unix_ns in begun:
            target.record(fault, step, (waited_ns() or 0) - before_ns, unix_ns)

    def step_begins() -> None:
        step_ends()
        begun[:] = [(target.moments.step, waited_ns() or 0, time.time_ns())]

    target.moments.at_begin(step_begins)
    target.until.callback(step_ends)


def start_neighbour(fault: Fault, target: FaultTarget) -> None:
    """Start them on the cores on which this process may run, at its priority; they end with it."""
    for _ in range(fault.count("procs")):
        target.until.callback(SideProcess("burner").kill)
    record_waiting(fault, target)


def pin_together(fault: Fault, target: FaultTarget) -> None:
    """Bind every thread of this process to the node's common core; those that start later inherit it."""
    core = _common_core()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            before = os.sched_getaffinity(int(thread.name))
            os.sched_setaffinity(int(thread.name), {core})
            target.until.callback(_free, int(thread.name), before)
    record_waiting(fault, target)


def _free(thread: int, cores: set[int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


def _common_core() -> int:
    """The first core of the node's first rank, which tells the others through the process group's store."""
    first = min(os.sched_getaffinity(0))
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return first
    store = dist.distributed_c10d._get_default_store()
    key = f"harness/core/{os.environ.get('GROUP_RANK', '0')}"
    if os.environ.get("LOCAL_RANK", "0") == "0":
        store.set(key, str(first))
    return int(store.get(key))


def pause(fault: Fault, target: FaultTarget) -> None:
    """Let a side process stop this one in each step that is due."""
    pauses = _Pauses(fault, target)
    target.moments.at_begin(pauses.step_begins)
    target.until.callback(pauses.close)


class _Pauses:
    """Asks the side process for pauses, and records those that it reports."""

    def __init__(self, fault: Fault, target: FaultTarget) -> None:
        self._fault, self._target = fault, target
        self._stopper = SideProcess("stopper", os.getpid())
        self._begins_ns: list[int] = []  # of the steps, by the monotonic clock that all processes share
        self._delays = 0
        self._stopped_ns = 0  # in the step before

    def step_begins(self) -> None:
        """Record the pauses so far; ask for the next one at a moment inside this step, if it is like the last one."""
        self._stopped_ns = 0
        self._record()
        self._begins_ns.append(time.monotonic_ns())
        if self._fault.due(self._target.moments.step):
            self._delays += 1
            delay_ns = int((self._delays + 7 * self._target.rank) * GOLDEN % 1 * self._usual_step_ns())
            self._stopper.send(f"{delay_ns} {self._fault.ns()}")

    def _usual_step_ns(self) -> int:
        if len(self._begins_ns) < 2:
            return 0
        return max(0, self._begins_ns[-1] - self._begins_ns[-2] - self._stopped_ns)

    def _record(self) -> None:
        for report in self._stopper.received():
            begin_ns, ns, unix_ns = map(int, report.split())
            self._stopped_ns += ns
            step = bisect_right(self._begins_ns, begin_ns) - 1
            self._target.record(self._fault, step, ns, unix_ns)

    def close(self) -> None:
        self._stopper.close()
        self._record()
