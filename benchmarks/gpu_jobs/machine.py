"""A machine in simulated time: hosts that launch, streams that run in order, messages in which ranks meet.

A program is a list of instructions for one rank. Every moment follows from earlier ones, so the order in which ranks
are looked at does not matter. Times are integer nanoseconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .program import (
    MAIN,
    UNSET,
    US,
    Begin,
    Call,
    Called,
    Compute,
    End,
    Fetch,
    Follow,
    Launch,
    Program,
    Record,
    Recording,
    Span,
    Thread,
    Wait,
    Work,
)

_WAITING_CALL_NS = 2 * US  # of a synchronising call itself


@dataclass(frozen=True)
class Costs:
    """What the hardware adds to each program. depth: launches that may wait on a stream before the host must.

    latency_ns: from a launch to its start on an idle device; gap_ns: between two kernels of a stream; event_ns: from
    the end of what another stream waits for to its start; wake_ns: from the end of what the host waits for until it
    goes on."""

    latency_ns: int = 6 * US
    gap_ns: int = 1 * US
    event_ns: int = 2 * US
    wake_ns: int = 8 * US
    depth: int = 1024


@dataclass(frozen=True)
class Loader:
    """Workers that load batches ahead. cost_ns: of each batch. workers 0: the host loads itself."""

    cost_ns: Callable[[int], int]
    workers: int = 4
    prefetch: int = 2


@dataclass(frozen=True)
class Contention:
    """Others use the rank's core: after `on_ns` of running it has none for `off_ns`, both on average."""

    on_ns: int
    off_ns: int
    seed: int


class Host:
    """One rank: its host's place in its program, and its device's streams."""

    def __init__(
        self, rank: int, program: Program, costs: Costs, loader: Loader | None, contention: Contention | None
    ) -> None:
        self.rank, self.program, self.costs, self.loader = rank, program, costs, loader
        self.at, self.now, self.thread = 0, 0, MAIN
        self.recording = Recording(rank)
        self.open: dict[int, list[tuple[str, str, int]]] = {}
        self.last: dict[int, Work] = {}
        self.follows: dict[int, list[Work]] = {}
        self.events: dict[object, Work] = {}
        self.queues: dict[int, list[Work]] = {}  # by stream
        self.ready: dict[int, int] = {}
        self.consumed: dict[int, int] = {}
        self.began = self.called = UNSET  # of the instruction and of the call in which the host is
        self.submitted = False  # the work of that call
        self.contention = contention
        self._random = random.Random(contention.seed if contention else 0)
        self._core_left = self._slice(contention.on_ns) if contention else 0

    def _slice(self, mean_ns: int) -> int:
        return round(mean_ns * self._random.uniform(0.5, 1.5))

    def compute(self, ns: int) -> None:
        """The host is busy, and loses its core to others meanwhile."""
        if self.contention is None:
            self.now += ns
            return
        while ns > self._core_left:
            self.now += self._core_left
            ns -= self._core_left
            off = self._slice(self.contention.off_ns)
            self.recording.off_core.append((self.thread, self.now, self.now + off))
            self.now += off
            self._core_left = self._slice(self.contention.on_ns)
        self._core_left -= ns
        self.now += ns

    def batch_ready(self, batch: int) -> int:
        """When the loader has a batch."""
        loader = self.loader
        assert loader is not None, "a program that fetches needs a loader"
        for i in range(len(self.ready), batch + 1):
            before = self.ready.get(i - loader.workers, 0)
            room = self.consumed.get(i - loader.prefetch * loader.workers, 0)
            self.ready[i] = max(before, room) + loader.cost_ns(i)
        return self.ready[batch]

    def span(self, kind: str, name: str, start: int) -> None:
        self.recording.spans.append(Span(kind, self.thread, name, start, self.now))


class Machine:
    """All ranks of one job."""

    def __init__(
        self,
        programs: Sequence[Program],
        costs: Costs | None = None,
        loaders: Mapping[int, Loader] | None = None,
        contention: Mapping[int, Contention] | None = None,
    ) -> None:
        costs = costs or Costs()
        self.hosts = [
            Host(rank, program, costs, (loaders or {}).get(rank), (contention or {}).get(rank))
            for rank, program in enumerate(programs)
        ]
        self._meetings: dict[tuple[object, ...], list[Work]] = {}
        self._ended: deque[Work] = deque()
        self._awake: deque[Host] = deque()

    def run(self) -> list[Recording]:
        """Run all programs to their ends. Raises RuntimeError: ranks wait for each other for ever."""
        self._awake.extend(self.hosts)
        while self._awake:
            self._go_on(self._awake.popleft())
        stuck = [host.rank for host in self.hosts if host.at < len(host.program)]
        if stuck:
            raise RuntimeError(f"ranks {stuck} wait for what never comes")
        return [host.recording for host in self.hosts]

    def _go_on(self, host: Host) -> None:
        while host.at < len(host.program):
            instruction = host.program[host.at]
            if not _DO[type(instruction)](self, host, instruction):
                return
            host.at += 1

    def submit(self, host: Host, work: Work, number: int, launched: int) -> None:
        """Put work on its stream."""
        costs = host.costs
        work.ready = launched + costs.latency_ns
        before = [(work_, costs.event_ns) for work_ in host.follows.pop(work.stream, ())]
        if work.stream in host.last:
            before.append((host.last[work.stream], costs.gap_ns))
        for other, after in before:
            if other.end != UNSET:
                work.ready = max(work.ready, other.end + after)
            else:
                other.dependents.append((work, after))
                work.missing += 1
        host.last[work.stream] = work
        host.recording.work.append((work, number))
        if not work.missing:
            self._start(work)
            self._settle()

    def _start(self, work: Work) -> None:
        work.start = work.ready
        self._awake.extend(self.hosts[rank] for rank in work.starters)
        message = work.message
        if message is None:
            work.end = work.start + work.ns
            self._ended.append(work)
            return
        come = self._meetings.setdefault(message.key, [])
        come.append(work)
        if len(come) == len(message.members):
            done = max(other.start for other in come) + max(
                other.message.ns for other in come if other.message is not None
            )
            for other in self._meetings.pop(message.key):
                other.end = done
                self._ended.append(other)

    def _settle(self) -> None:
        while self._ended:
            work = self._ended.popleft()
            self._awake.extend(self.hosts[rank] for rank in work.waiters)
            for other, after in work.dependents:
                other.ready = max(other.ready, work.end + after)
                other.missing -= 1
                if not other.missing:
                    self._start(other)

    # ---- instructions: True when done, False while the host is held up ----

    def launch(self, host: Host, do: Launch) -> bool:
        """Launch work; with a full queue, or if the call waits for its work, the call takes longer."""
        if host.began == UNSET:
            host.began = host.now
            host.compute(do.before_ns)
            host.called = host.now
        number = len(host.recording.calls) + 1
        if not host.submitted:
            depth, work = host.costs.depth, do.make()
            queue = host.queues.setdefault(work.stream, [])
            if len(queue) >= depth:
                oldest = queue[-depth]
                if oldest.start == UNSET:
                    oldest.starters.append(host.rank)
                    return False
                host.now = max(host.now, oldest.start)
            host.compute(do.call_ns)
            host.submitted = True
            queue.append(work)
            self.submit(host, work, number, host.now)
        if do.blocks:
            own, _ = host.recording.work[-1]
            if own.end == UNSET:
                own.waiters.append(host.rank)
                return False
            host.now = max(host.now, own.end + host.costs.wake_ns)
        host.recording.calls.append(Called(host.thread, do.call, host.called, host.now, number))
        host.compute(do.after_ns)
        if do.operator:
            host.span("operator", do.operator, host.began)
        host.began, host.submitted = UNSET, False
        return True

    def do_compute(self, host: Host, do: Compute) -> bool:
        host.compute(do.ns)
        return True

    def begin(self, host: Host, do: Begin) -> bool:
        host.open.setdefault(host.thread, []).append((do.kind, do.name, host.now))
        return True

    def end(self, host: Host, _do: End) -> bool:
        kind, name, start = host.open[host.thread].pop()
        host.span(kind, name, start)
        return True

    def wait(self, host: Host, do: Wait) -> bool:
        """Wait for all that a stream, or the device, has got so far."""
        if host.began == UNSET:
            host.began = host.now
            host.compute(_WAITING_CALL_NS)
        pending = [w for s, w in host.last.items() if do.stream in (None, s)]
        for work in pending:
            if work.end == UNSET:
                work.waiters.append(host.rank)
                return False
        done = max((work.end for work in pending), default=0)
        host.now = max(host.now + US, done + host.costs.wake_ns if done > host.now else 0)
        host.recording.calls.append(Called(host.thread, do.call, host.began, host.now, 0))
        host.began = UNSET
        return True

    def call(self, host: Host, do: Call) -> bool:
        if host.began == UNSET:
            host.began = host.now
        if do.after_device:
            for work in host.last.values():
                if work.end == UNSET:
                    work.waiters.append(host.rank)
                    return False
                host.now = max(host.now, work.end)
        host.compute(do.ns)
        host.recording.calls.append(Called(host.thread, do.name, host.began, host.now, 0))
        host.began = UNSET
        return True

    def record(self, host: Host, do: Record) -> bool:
        if do.stream in host.last:
            host.events[do.event] = host.last[do.stream]
        return True

    def follow(self, host: Host, do: Follow) -> bool:
        if do.event in host.events:
            host.follows.setdefault(do.stream, []).append(host.events[do.event])
        return True

    def fetch(self, host: Host, do: Fetch) -> bool:
        loader = host.loader
        assert loader is not None, "a program that fetches needs a loader"
        if loader.workers:
            host.now = max(host.now, host.batch_ready(do.batch))
            host.consumed[do.batch] = host.now
        else:
            host.compute(loader.cost_ns(do.batch))
        host.compute(do.ns)
        return True

    def to_thread(self, host: Host, do: Thread) -> bool:
        host.thread = do.number
        return True


_DO: dict[type, Callable[[Machine, Host, Any], bool]] = {
    Launch: Machine.launch,
    Compute: Machine.do_compute,
    Begin: Machine.begin,
    End: Machine.end,
    Wait: Machine.wait,
    Call: Machine.call,
    Record: Machine.record,
    Follow: Machine.follow,
    Fetch: Machine.fetch,
    Thread: Machine.to_thread,
}
