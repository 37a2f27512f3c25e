"""What a program of one rank may say, and what a perfect profiler records of it. Times are integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

US, MS = 1_000, 1_000_000
MAIN, AUTOGRAD = 100, 101  # threads
COMPUTE, COMM, COPY = 7, 20, 24  # streams
UNSET = -1


class Message(NamedTuple):
    """What ranks send each other: they are as one when all `members` have come, and done `ns` later."""

    key: tuple[object, ...]
    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast, send, recv
    members: tuple[int, ...]
    elements: int
    dtype: str
    group: str
    ns: int


@dataclass(slots=True)
class Work:
    """Something for a device. direction: of a copy, HtoD or DtoH; memory: pageable or pinned, at the host. waiters and
    starters: ranks whose hosts wait for its end and for its start."""

    name: str
    stream: int
    ns: int
    kind: str = "kernel"  # kernel, copy or set
    size: int = 0
    direction: str = ""
    memory: str = ""
    message: Message | None = None
    start: int = UNSET
    end: int = UNSET
    ready: int = 0
    missing: int = 0
    dependents: list[tuple[Work, int]] = field(default_factory=list)
    waiters: list[int] = field(default_factory=list)
    starters: list[int] = field(default_factory=list)


class Launch(NamedTuple):
    """Launch work. operator: around the call; before_ns: the host's time in it before the call; after_ns: after it.
    blocks: the call returns when the work is done (a copy of pageable memory)."""

    make: Callable[[], Work]
    call: str
    call_ns: int
    operator: str = ""
    before_ns: int = 0
    after_ns: int = 0
    blocks: bool = False


class Compute(NamedTuple):
    """The host computes."""

    ns: int


class Begin(NamedTuple):
    """A span begins on the current thread: operator, python, range, step or collector."""

    kind: str
    name: str


class End(NamedTuple):
    """The last span of the current thread ends."""


class Wait(NamedTuple):
    """The host waits for a stream, or for the device (stream None)."""

    call: str
    stream: int | None = None


class Call(NamedTuple):
    """A call that takes `ns`; after_device: and waits for the device before that, as cudaFree does."""

    name: str
    ns: int
    after_device: bool = False


class Record(NamedTuple):
    """An event after what a stream has got so far."""

    event: object
    stream: int


class Follow(NamedTuple):
    """What a stream gets from now on waits for an event."""

    stream: int
    event: object


class Fetch(NamedTuple):
    """Take a batch from the loader; ns: what the host itself needs for that."""

    batch: int
    ns: int


class Thread(NamedTuple):
    """The program goes on on another thread."""

    number: int


Instruction = Launch | Compute | Begin | End | Wait | Call | Record | Follow | Fetch | Thread
Program = Sequence[Instruction]


class Span(NamedTuple):
    """What a thread did."""

    kind: str
    thread: int
    name: str
    start: int
    end: int


class Called(NamedTuple):
    """A call of the runtime; number: what ties work to it, 0 for none."""

    thread: int
    name: str
    start: int
    end: int
    number: int


@dataclass
class Recording:
    """What a perfect profiler would see of one rank."""

    rank: int
    spans: list[Span] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    work: list[tuple[Work, int]] = field(default_factory=list)  # with the number of its call
    off_core: list[tuple[int, int, int]] = field(default_factory=list)  # thread, start, end

    @property
    def steps(self) -> list[Span]:
        """Its marked steps."""
        return sorted((span for span in self.spans if span.kind == "step"), key=lambda span: span.start)

    @property
    def end(self) -> int:
        """Its last moment."""
        return max(
            max((s.end for s in self.spans), default=0),
            max((c.end for c in self.calls), default=0),
            max((w.end for w, _ in self.work), default=0),
        )
