"""A recorded process as a program for the machine: what its host did between calls, and what it launched, in order.

The recorded waiting is left out wherever the machine can find it: in synchronising calls, in launches into a full
queue, in copies that the host waits for, in streams that wait for others. What a recording does not say is inferred,
and never against it: a task is said to follow another one only if it did not start before that one's end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median

from .machine import Costs
from .program import US, Compute, Follow, Instruction, Launch, Message, Record, Wait, Work
from .program import Call as Do
from .recorded import Call, Process, Task

_FREES = ("cudaFree", "cudaFreeHost", "hipFree", "hipHostFree", "cuMemFree")
_FULL = 256  # launches ahead of the device, below which a long launch is not taken for one into a full queue
_LONG = 50 * US
_AHEAD = 20 * US  # how long before its turn a task is launched that only its order held back
_JUST = 10 * US  # a task that starts so soon after another one's end may have waited for it
_FEW = 8  # samples, below which a cost is not measured but left as the machine has it


@dataclass
class Story:
    """One process made ready. calls: of the threads that feed its device, by time; tasks: in the order in which they
    were launched, which gives each its place; left_out: tasks without a launch, and of threads with streams of their
    own."""

    process: Process
    calls: list[Call]
    tasks: list[Task]
    first: dict[int, range]  # by call number: its tasks' places
    before: dict[int, int]  # by stream: until when it is busy with what was launched before the recording
    left_out: int
    full: set[int] = field(default_factory=set)  # calls that waited for room
    follows: dict[int, list[int]] = field(default_factory=dict)  # by place: places of what it waits for
    watched: dict[int, int] = field(default_factory=dict)  # by call: the place of what an event wait waits for
    costs: Costs = field(default_factory=Costs)

    @property
    def begin(self) -> int:
        """The first moment of the host."""
        return self.calls[0].start


def story(process: Process) -> Story:
    """Sort out one process. Raises ValueError: it has no launches."""
    by_number: dict[int, list[Task]] = defaultdict(list)
    for task in process.tasks:
        by_number[task.number].append(task)
    launches = [call for call in process.calls if call.number in by_number]
    if not launches:
        raise ValueError("no launches of device work were recorded")
    threads = _feeding(launches, by_number)
    calls = sorted((call for call in process.calls if call.thread in threads), key=lambda call: call.start)
    tasks: list[Task] = []
    first = {}
    for call in calls:
        own = sorted(by_number.get(call.number, ()), key=lambda task: task.start)
        if own and call.number not in first:
            first[call.number] = range(len(tasks), len(tasks) + len(own))
            tasks += [task._replace(waited=task.waited and call.end >= task.start) for task in own]
    before = _before(process, calls, tasks, first)
    told = Story(process, calls, tasks, first, before, len(process.tasks) - len(tasks))
    _Dependencies(told).find()
    told.costs = _costs(told)
    return told


def _feeding(launches: Sequence[Call], by_number: dict[int, list[Task]]) -> set[int]:
    """The threads that feed the busiest stream, and those that share a stream with them: the main thread and
    autograd's. A data loader's own thread works beside them, which a program cannot."""
    streams: dict[int, set[int]] = defaultdict(set)
    load: dict[int, int] = defaultdict(int)
    for call in launches:
        for task in by_number[call.number]:
            streams[call.thread].add(task.stream)
            load[task.stream] += task.end - task.start
    shared = {max(load, key=lambda stream: load[stream])}
    while True:
        threads = {thread for thread, own in streams.items() if own & shared}
        wider = set().union(*(streams[thread] for thread in threads))
        if wider == shared:
            return threads
        shared = wider


def _before(process: Process, calls: Sequence[Call], tasks: Sequence[Task], first: dict[int, range]) -> dict[int, int]:
    """Until when each stream works on what was launched before the recording. That may not have been recorded: where
    the very first task comes long after its call, its stream was busy until then."""
    starts: dict[int, int] = {}
    for task in tasks:
        starts[task.stream] = min(task.start, starts.get(task.stream, task.start))
    busy: dict[int, int] = {}
    for task in process.tasks:
        if task.number not in first and task.stream in starts and task.end <= starts[task.stream]:
            busy[task.stream] = max(busy.get(task.stream, 0), task.end)
    opening = next(call for call in calls if call.number in first)
    idle = any(is_wait(call.name) for call in calls if call.start < opening.start)
    if not busy and not idle and tasks[0].start > opening.start + _LONG:
        busy[tasks[0].stream] = tasks[0].start
    return busy


# ---- costs, measured in the recording ----


def _costs(told: Story) -> Costs:
    """Latency: of launches to an idle device, the median; gap: between kernels that were launched long before their
    turn, the mean, as gaps add up; event and wake: of waiting streams and calls, the median; depth: launches ahead of
    the device when a launch into a full queue returned."""
    latency, gap = _starts(told)
    usual = Costs()
    return Costs(
        latency_ns=_median(latency, usual.latency_ns),
        gap_ns=round(fmean(gap)) if len(gap) >= _FEW else usual.gap_ns,
        event_ns=_median(_events(told), usual.event_ns),
        wake_ns=_median(_wakes(told), usual.wake_ns),
        depth=_depth(told),
    )


def _starts(told: Story) -> tuple[list[int], list[int]]:
    """From launches to starts on an idle device, and between tasks that nothing but their order held back."""
    latency, gap = [], []
    last: dict[int, Task] = {}
    idle_from = max(told.before.values(), default=0)
    for call in told.calls:
        for place in told.first.get(call.number, ()):
            task = told.tasks[place]
            previous = last.get(task.stream)
            if call.start > idle_from and not task.waited:
                latency.append(task.start - call.end)
            elif previous is not None and place not in told.follows and call.end + _AHEAD < previous.end:
                gap.append(task.start - previous.end)
            last[task.stream] = task
            idle_from = max(idle_from, task.end)
    return latency, [ns for ns in gap if ns < _AHEAD]


def _median(values: Sequence[int], otherwise: int) -> int:
    return round(median(values)) if len(values) >= _FEW else otherwise


def _wakes(told: Story) -> list[int]:
    ends = sorted(task.end for task in told.tasks)
    wakes = []
    for call in told.calls:
        if is_wait(call.name) and call.end - call.start > _LONG:
            at = bisect_left(ends, call.end) - 1
            if at >= 0 and ends[at] > call.start:
                wakes.append(call.end - ends[at])
    return wakes


def _depth(told: Story) -> int:
    """Notes which launches waited for room, and returns how many were ahead then: the median."""
    usual = usual_costs(told.calls)
    waiting: list[int] = []
    ahead, most = [], 0
    for call in told.calls:
        while waiting and waiting[0] <= call.end:
            heapq.heappop(waiting)
        took = call.end - call.start
        own = told.first.get(call.number, range(0))
        if own and took > max(5 * usual[call.name], _LONG) and len(waiting) >= _FULL:
            told.full.add(call.number)
            ahead.append(len(waiting))
        for place in own:
            heapq.heappush(waiting, told.tasks[place].start)
        most = max(most, len(waiting))
    return round(median(ahead)) if ahead else max(Costs().depth, most + 1)


def usual_costs(calls: Iterable[Call]) -> dict[str, int]:
    """By name: the median of how long calls take."""
    took: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        took[call.name].append(call.end - call.start)
    return {name: round(median(values)) for name, values in took.items()}


def _events(told: Story) -> list[int]:
    """From the end of what a task waits for on another stream to its start, where that was what it waited for."""
    lags = []
    for place, awaited in told.follows.items():
        lag = told.tasks[place].start - max(told.tasks[other].end for other in awaited)
        if 0 <= lag < _JUST:
            lags.append(lag)
    return lags


def held_back(told: Story) -> tuple[int, int]:
    """How many tasks started later than their launch, their stream and what they follow explain, while a kernel of
    another stream ran, and by how many ns in all: a busy device has no room for them, which the machine always has."""
    running = _Running(told.process.tasks)
    held = lost = 0
    last = dict(told.before)
    for call in told.calls:
        for place in told.first.get(call.number, ()):
            task = told.tasks[place]
            followed = (told.tasks[other].end for other in told.follows.get(place, ()))
            free = max([call.end, last.get(task.stream, 0), *followed])
            if task.start - free > _AHEAD and running.beside(task, free):
                held, lost = held + 1, lost + task.start - free
            last[task.stream] = task.end
    return held, lost


class _Running:
    """The kernels of each stream, by time."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.streams: dict[int, list[Task]] = defaultdict(list)
        for task in sorted(tasks, key=lambda task: task.start):
            if task.kind == "kernel":
                self.streams[task.stream].append(task)
        self.starts = {stream: [task.start for task in own] for stream, own in self.streams.items()}

    def beside(self, task: Task, since: int) -> bool:
        """Whether a kernel of another stream ran between a moment and the task's start."""
        for stream, own in self.streams.items():
            at = bisect_left(self.starts[stream], task.start)
            if stream != task.stream and at and own[at - 1].end > since:
                return True
        return False


# ---- what waits for what ----


def is_wait(name: str) -> bool:
    """Whether a call waits for the device by its nature."""
    return "Synchronize" in name or name.startswith(_FREES)


class _Dependencies:
    """Which tasks follow tasks of other streams.

    Where the recording names the event and its stream, that is it. Where a call has a stream wait and the recording
    does not say for what: the next task waits for the last one of the stream that was used before; if that is its
    own stream, for the latest task of each other stream that was done by its start. Where no such call is
    recorded: a collective waits for what its device got before it, and a task that nothing else held back and that
    starts just after a task of another stream waits for that."""

    def __init__(self, told: Story) -> None:
        self.told = told
        self.latest: dict[int, list[int]] = defaultdict(list)  # by stream: places so far
        self.marked: dict[object, int | None] = {}  # by event: the place that it marks
        self.due: dict[int, list[int]] = defaultdict(list)  # by stream: what its next task follows
        self.unsaid = 0  # stream waits of which the recording does not say what they are for
        self.used: int | None = None  # the stream that got the last task
        self.silent = not any("WaitEvent" in call.name for call in told.calls)

    def find(self) -> None:
        """Fill the story's follows and watched."""
        for call in self.told.calls:
            records, waits = self.told.process.records, self.told.process.waits
            if call.number in records and call.number not in self.told.first:
                stream, event = records[call.number]
                self.marked[event] = self.latest[stream][-1] if self.latest[stream] else None
            if "StreamWaitEvent" in call.name:
                self.stream_waits(call, *waits.get(call.number, (None, None)))
            elif "EventSynchronize" in call.name:
                self.host_waits(call, waits.get(call.number, (None, None))[1])
            for place in self.told.first.get(call.number, ()):
                self.launched(call, place)

    def stream_waits(self, call: Call, stream: int | None, event: object) -> None:
        if stream is not None and self.told.process.records:
            place = self.marked.get(event)
            if place is not None and self.told.tasks[place].stream != stream:
                self.due[stream].append(place)
        else:
            self.unsaid += 1

    def host_waits(self, call: Call, event: object) -> None:
        place = self.marked.get(event)
        if place is None and call.end - call.start > _LONG:  # it waited: for what was done last before it returned
            done = [p for own in self.latest.values() for p in own[-64:] if self.told.tasks[p].end <= call.end]
            place = max(done, key=lambda p: self.told.tasks[p].end, default=None)
        if place is not None:
            self.told.watched[call.number] = place

    def launched(self, call: Call, place: int) -> None:
        task = self.told.tasks[place]
        awaited = self.due.pop(task.stream, [])
        if self.unsaid:
            awaited += self.unnamed(task)
        elif self.silent:
            awaited += self.guessed(call, task)
        if awaited:
            self.told.follows[place] = awaited
        self.latest[task.stream].append(place)
        self.used = task.stream

    def unnamed(self, task: Task) -> list[int]:
        if self.used in (None, task.stream):
            others, self.unsaid = [stream for stream in self.latest if stream != task.stream], 0
        else:
            others, self.unsaid = [self.used], self.unsaid - 1
        found = (self.done_by(stream, task.start) for stream in others)
        return [place for place in found if place is not None]

    def guessed(self, call: Call, task: Task) -> list[int]:
        others = [stream for stream in self.latest if stream != task.stream]
        if "nccl" in task.name.lower():
            return [place for s in others if (place := self.done_by(s, task.start)) is not None]
        own = self.latest[task.stream]
        free = max(call.end, self.told.tasks[own[-1]].end if own else 0)
        if task.start - free < _JUST:
            return []
        found = [place for s in others if (place := self.done_by(s, task.start)) is not None]
        return [place for place in found if self.told.tasks[place].end > task.start - _JUST]

    def done_by(self, stream: int, moment: int) -> int | None:
        """The latest task that a stream got, if it was done by then; else the latest that was."""
        for place in reversed(self.latest[stream]):
            if self.told.tasks[place].end <= moment:
                return place
        return None


# ---- the program ----


@dataclass(frozen=True)
class Change:
    """What a control changes: the length of all kernels, copies and sets, and of all that the host does."""

    device: float = 1.0
    host: float = 1.0


def program(told: Story, start_ns: int, messages: dict[int, Message], change: Change) -> list[Instruction]:
    """Its instructions, from `start_ns` of the recording on. messages: by place, in which ranks meet."""
    return _Teller(told, start_ns, messages, change).program()


class _Teller:
    def __init__(self, told: Story, start_ns: int, messages: dict[int, Message], change: Change) -> None:
        self.told, self.messages, self.change = told, messages, change
        self.at = self.start_ns = start_ns
        self.usual = usual_costs(told.calls)
        self.least = {call.name: 0 for call in told.calls}
        for call in sorted(told.calls, key=lambda call: call.start - call.end):
            self.least[call.name] = call.end - call.start
        self.copies = _until_copies(told)
        self.ends = sorted(task.end for task in told.tasks)
        self.awaited = {p for own in told.follows.values() for p in own} | set(told.watched.values())
        self.thread_stream: dict[int, int] = {}
        self.do: list[Instruction] = []

    def program(self) -> list[Instruction]:
        """What was launched before the recording occupies its streams; then the calls, in the order of time. A wait
        that comes before all that is known is for work that is not: its time is the host's."""
        known = bool(self.told.before)
        for stream, until in sorted(self.told.before.items()):
            ns = max(until - self.start_ns - self.told.costs.latency_ns, 0)
            self.do.append(Launch(partial(Work, "", stream, ns), "", 0))
        for call in self.told.calls:
            self.host(call.start - self.at)
            took = max(call.end - max(call.start, self.at), 0)
            if call.number in self.told.first:
                self.launch(call, took)
                known = True
            elif known and is_wait(call.name):
                self.wait(call, took)
            else:
                self.host(took)
            self.at = max(self.at, call.end)
        return self.do

    def host(self, ns: int) -> None:
        if ns > 0:
            self.do.append(Compute(round(ns * self.change.host)))

    def launch(self, call: Call, took: int) -> None:
        if call.number in self.told.full:
            took = min(took, self.usual[call.name])
        for place in self.told.first[call.number]:
            task = self.told.tasks[place]
            if task.waited:
                took = min(took, self.copies)
            for other in self.told.follows.get(place, ()):
                self.do.append(Follow(task.stream, other))
            ns = round((task.end - task.start) * self.change.device)
            make = partial(Work, task.name, task.stream, ns, message=self.messages.get(place))
            self.do.append(Launch(make, call.name, round(took * self.change.host), blocks=task.waited))
            if place in self.awaited:
                self.do.append(Record(place, task.stream))
            self.thread_stream[call.thread] = task.stream
            took = 0

    def wait(self, call: Call, took: int) -> None:
        """For the device, an event's task, or a stream: the one that is recorded, else the thread's last one."""
        own = min(took, self.least[call.name])
        own = round((own if own < _LONG else Wait("").ns) * self.change.host)
        if call.name.startswith(_FREES):
            at = bisect_left(self.ends, call.end) - 1
            waited = self.ends[at] - (call.end - took) if at >= 0 else 0
            self.do.append(Do(call.name, took - max(waited, 0), after_device=True))
            return
        if "Event" in call.name:
            place = self.told.watched.get(call.number)
            if place is None:
                self.host(took)
            else:
                self.do.append(Wait(call.name, event=place, ns=own))
            return
        stream = None
        if "Stream" in call.name:
            stream = self.told.process.waits.get(call.number, (None, None))[0]
            stream = self.thread_stream.get(call.thread) if stream is None else stream
        self.do.append(Wait(call.name, stream, ns=own))


def _until_copies(told: Story) -> int:
    """What a call takes before a copy that it waits for, with nothing ahead of the copy: the least one; else what
    launches of others take."""
    own = [(call, told.tasks[places[0]]) for call in told.calls if (places := told.first.get(call.number))]
    busy = dict(told.before)
    lags, others = [], []
    for call, task in own:
        if not task.waited:
            others.append(call.end - call.start)
        elif busy.get(task.stream, 0) < call.start:
            lags.append(task.start - call.start - told.costs.latency_ns)
        busy[task.stream] = task.end
    return max(min(lags), 0) if lags else round(median(others or [0]))
