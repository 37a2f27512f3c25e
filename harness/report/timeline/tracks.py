"""One process of a trace as strips to draw: ranges by depth, streams, idle time by cause. Columns in, columns
out; times stay on the trace's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.breakdown import COMMUNICATION, MEMORY
from harness.analysis.process.device import GapJudge, idle_of
from harness.analysis.process.idle import CAUSES
from harness.analysis.process.intervals import clip
from harness.analysis.process.kinds import KINDS as KERNEL_KINDS
from harness.analysis.process.prepared import Measured
from harness.format.format import amount
from harness.format.labels import cause_word
from harness.traces.trace import I64, U8, RangeKind

KINDS = (*KERNEL_KINDS, "memory")  # a kernel's kinds, and copies and sets
_DEEPEST = 8  # ranges below this many others are not drawn
_MOST_THREADS = 4  # with ranges, besides the main one
_LONGEST_NAME = 200
_RANGE = 255  # the code of what has a name and no kind


@dataclass(frozen=True)
class Lane:
    """One row of the timeline: n intervals that do not overlap, sorted. `code` indexes KINDS or CAUSES.

    `group` says which rows belong together: ranges, idle or stream. `text` is each interval's name.
    """

    group: str
    label: str
    device: int
    start_ns: I64
    end_ns: I64
    text: NDArray[np.int64]
    code: U8

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Strip:
    """All lanes of one process, with the steps that they show. Times in nanoseconds of the trace's clock."""

    rank: int | None
    host: str | None
    clock: str
    epoch_ns: int | None
    path: str
    lanes: list[Lane]
    texts: list[str]
    steps: list[tuple[str, int, int]]
    window: tuple[int, int]
    notes: list[str] = field(default_factory=list)
    run: str = ""  # where several are shown together
    cpu: bool = False  # operators stand in for kernels


class Texts:
    """Each distinct text once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        text = text[:_LONGEST_NAME]
        found = self._index.setdefault(text, len(self.all))
        if found == len(self.all):
            self.all.append(text)
        return found


def make_strip(m: Measured, first: int, count: int, most_events: int) -> Strip | None:
    """Counted steps `first` to `first + count` of one process; None when it did nothing in them.

    At most `most_events` device events: what is beyond is cut off, and a note says so.
    """
    steps = _steps(m, first, count)
    if not m.windows:
        return None
    window = _window(m, steps)
    notes: list[str] = []
    window = _affordable(m, window, most_events, notes)
    texts = Texts()
    main, others = _ranges(m, window, texts)
    lanes = [*main, *_idle(m, window, texts), *_streams(m, window, texts), *others]
    identity = m.view.trace.identity
    clock = identity.host or "unknown host" if m.view.epoch_ns is not None else identity.path
    return Strip(
        rank=m.view.rank,
        host=identity.host,
        clock=clock,
        epoch_ns=m.view.epoch_ns,
        path=identity.path,
        lanes=[lane for lane in lanes if len(lane)],
        texts=texts.all,
        steps=[s for s in steps if s[1] < window[1]],
        window=window,
        notes=notes,
        cpu=m.view.on_cpu,
    )


def _steps(m: Measured, first: int, count: int) -> list[tuple[str, int, int]]:
    rows = np.flatnonzero(m.steps.counted)[first : first + count]
    return [(m.steps.names[i], int(m.steps.start_ns[i]), int(m.steps.end_ns[i])) for i in rows]


def _window(m: Measured, steps: list[tuple[str, int, int]]) -> tuple[int, int]:
    """The steps, or without any the devices' own windows."""
    if steps:
        return steps[0][1], steps[-1][2]
    return min(w[0] for w in m.windows.values()), max(w[1] for w in m.windows.values())


def _affordable(m: Measured, window: tuple[int, int], most: int, notes: list[str]) -> tuple[int, int]:
    starts = m.view.events.start_ns
    inside = np.sort(starts[(starts >= window[0]) & (starts < window[1])])
    if len(inside) <= most:
        return window
    notes.append(f"the first {most:,} of {len(inside):,} events of rank {m.view.rank} are shown")
    return window[0], int(inside[most])


def _shown(start: I64, end: I64, window: tuple[int, int]) -> NDArray[np.bool_]:
    return (end > window[0]) & (start < window[1]) & (end > start)


def _ranges(m: Measured, window: tuple[int, int], texts: Texts) -> tuple[list[Lane], list[Lane]]:
    """Rows of nested ranges: the main thread's, and those of the threads with most ranges besides."""
    ranges = m.view.ranges
    shown = _shown(ranges.start_ns, ranges.end_ns, window)
    nested = shown & (ranges.kind != RangeKind.START_END)
    depth = _depths(m.nesting.own_parent)
    main = m.nesting.main_thread
    lanes: dict[bool, list[Lane]] = {True: [], False: []}
    for thread in _threads(ranges.thread[nested], main):
        label = "ranges" if thread == main else f"ranges, thread {thread}"
        mine = nested & (ranges.thread == thread)
        deepest = _DEEPEST if thread == main else _DEEPEST // 2
        for level in range(min(int(depth[mine].max(initial=-1)) + 1, deepest)):
            rows = np.flatnonzero(mine & (depth == level))
            lanes[thread == main].append(_range_lane(m, rows, label if level == 0 else "", texts))
    crossing = np.flatnonzero(shown & (ranges.kind == RangeKind.START_END))
    order = crossing[np.argsort(ranges.start_ns[crossing], kind="stable")]
    for number, rows in enumerate(_apart(order, ranges.start_ns, ranges.end_ns)[: _DEEPEST // 2]):
        lanes[False].append(_range_lane(m, rows, "start/end ranges" if number == 0 else "", texts))
    return lanes[True], lanes[False]


def _range_lane(m: Measured, rows: NDArray[np.intp], label: str, texts: Texts) -> Lane:
    ranges = m.view.ranges
    text = _named(m.view.names, ranges.name[rows], texts)
    code = np.full(len(rows), _RANGE, np.uint8)
    return Lane("ranges", label, -1, ranges.start_ns[rows], ranges.end_ns[rows], text, code)


def _named(names: list[str], column: NDArray[Any], texts: Texts) -> NDArray[np.int64]:
    """Names' indices as texts' indices."""
    used, inverse = np.unique(column, return_inverse=True)
    table = np.array([texts.index(names[int(i)]) for i in used], np.int64)
    return table[inverse] if len(used) else np.empty(0, np.int64)


def _threads(thread: I64, main: int | None) -> list[int]:
    found, counts = np.unique(thread, return_counts=True)
    others = [int(t) for t in found[np.argsort(-counts, kind="stable")] if t != main]
    return ([main] if main is not None and main in found else []) + others[:_MOST_THREADS]


def _depths(parent: I64) -> NDArray[np.int32]:
    """How many ranges are around each."""
    depth = np.zeros(len(parent), np.int32)
    up = parent
    while (inside := up >= 0).any():
        depth += inside
        up = np.where(inside, parent[np.maximum(up, 0)], -1)
    return depth


def _apart(order: NDArray[np.intp], start: I64, end: I64) -> list[NDArray[np.intp]]:
    """Rows, which come sorted by start, in lists without overlaps, each in the first that is free."""
    if len(order) == 0:
        return []
    if (start[order][1:] >= end[order][:-1]).all():
        return [order]
    lanes: list[list[int]] = []
    ends: list[int] = []  # of the last interval of each lane
    for row, s, e in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        lane = next((i for i, last in enumerate(ends) if last <= s), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            ends.append(e)
        lanes[lane].append(row)
        ends[lane] = e
    return [np.array(lane, np.intp) for lane in lanes]


def _idle(m: Measured, window: tuple[int, int], texts: Texts) -> Iterator[Lane]:
    """Per device its gaps, each with the cause that explains most of it."""
    for device in m.rows:
        gaps = clip(idle_of(m, device), *window)
        if len(gaps.start) == 0:
            continue
        cause = GapJudge(m, device)(gaps).argmax(axis=1)
        words = [cause_word(name, m.view.on_cpu) for name in CAUSES]
        table = np.array([texts.index(f"idle: {word}") for word in words], np.int64)
        yield Lane("idle", "idle", device, gaps.start, gaps.end, table[cause], cause.astype(np.uint8))


def _streams(m: Measured, window: tuple[int, int], texts: Texts) -> Iterator[Lane]:
    """Per device and stream (on a CPU: per thread) its events."""
    events = m.view.events
    shown = _shown(events.start_ns, events.end_ns, window)
    kind_of = _kind_codes(m)
    remark = _remarks(m, texts)
    for device, slice_ in m.rows.items():
        rows = np.arange(slice_.start, slice_.stop)[shown[slice_]]
        for stream in np.unique(events.stream[rows]).tolist():
            mine = rows[events.stream[rows] == stream]
            label = _stream_label(m, mine, stream)
            for number, apart in enumerate(_apart(mine, events.start_ns, events.end_ns)):
                text = _named(m.view.names, events.name[apart], texts)
                for at in np.flatnonzero(np.isin(apart, list(remark))) if remark else ():
                    text[at] = remark[int(apart[at])]
                yield Lane(
                    "stream",
                    label if number == 0 else "",
                    device,
                    events.start_ns[apart],
                    events.end_ns[apart],
                    text,
                    kind_of[m.kinds.code[apart]],
                )


def _kind_codes(m: Measured) -> U8:
    """For each label of the measurement its index in KINDS."""
    index = {kind: i for i, kind in enumerate(KINDS)}

    def of(kind: str) -> int:
        return index["memory"] if kind.startswith(("copy", "memset")) else index.get(kind, index["other"])

    return np.array([of(kind) for kind, _ in m.kinds.labels], np.uint8)


def _stream_label(m: Measured, rows: NDArray[np.intp], stream: int) -> str:
    """What the stream is mostly for."""
    events = m.view.events
    length = (events.end_ns - events.start_ns)[rows]
    classes = m.kinds.event_class[rows]
    total = max(int(length.sum()), 1)
    word = "thread" if m.view.on_cpu else "stream"
    if m.view.on_cpu and stream == m.nesting.main_thread:
        return f"operators, thread {stream}"
    if int(length[classes == COMMUNICATION].sum()) > total / 2:
        return f"{word} {stream} · {m.view.trace.identity.backend or 'NCCL'}"
    if int(length[classes == MEMORY].sum()) > total / 2:
        return f"{word} {stream} · copies"
    return f"{word} {stream}"


def _remarks(m: Measured, texts: Texts) -> dict[int, int]:
    """Texts of the events that are collectives, with their size and group."""
    rows, names = m.view.collectives, m.view.names

    def say(i: int) -> str:
        kind, group = rows.kind[i], rows.group[i]
        parts = [
            names[m.view.events.name[rows.event[i]]],
            f"{names[kind] if kind >= 0 else 'collective'}",
            amount(int(rows.bytes[i])) if rows.bytes[i] >= 0 else "size not recorded",
            f"{int(rows.group_size[i])} ranks" if rows.group_size[i] > 0 else "",
            f"group {names[group]}" if group >= 0 else "",
        ]
        return " · ".join(p for p in parts if p)

    return {int(rows.event[i]): texts.index(say(i)) for i in np.flatnonzero(rows.event >= 0).tolist()}
