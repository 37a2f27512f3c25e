"""What a page draws of one process: a track with ranges by depth, streams, idle time by cause and
pipeline passes. Times stay on the trace's own clock. Other modules decide what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.labels import cause_word
from harness.analysis.process.device import idle_of
from harness.analysis.process.host_activities import what_of
from harness.analysis.process.host_calls import CAUSES
from harness.analysis.process.idle import COMMUNICATION, MEMORY
from harness.analysis.process.intervals import clip, lanes
from harness.analysis.process.kinds import KINDS as KERNEL_KINDS
from harness.analysis.process.kinds import Rules, load_rules
from harness.analysis.process.pipeline import microbatches
from harness.analysis.process.prepared import MeasuredProcess, extent_of, prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Window
from harness.common.display.format import amount
from harness.common.display.palette import MEMORY as MEMORY_COLOR
from harness.traces import TraceError, map_traces
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import I64, U8, RangeKind, Trace

KINDS = {**KERNEL_KINDS, "memory": MEMORY_COLOR}  # a kernel's kinds, and copies and sets; each with its colour
_DEEPEST = 8  # ranges below this many others are not drawn
_MOST_THREADS = 4  # with ranges, besides the main one
_LONGEST_NAME = 200
_RANGE = 255  # the code of ranges, which have no kind
MOST_TRACKS = 8  # processes that a page shows by default; of more files no track is kept


@dataclass(frozen=True)
class Lane:
    """One row of the timeline: n intervals that do not overlap, sorted. `code` indexes KINDS or CAUSES.

    `group` joins rows: ranges, idle or stream. `text` is each interval's name.
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

    def cut(self, rows: slice) -> Lane:
        columns = {name: getattr(self, name)[rows] for name in ("start_ns", "end_ns", "text", "code")}
        return replace(self, **columns)


@dataclass(frozen=True)
class PipelinePass:
    """One forward or backward of one micro-batch on one stage; nanoseconds since its step's start on its rank."""

    rank: int | None
    stage: int
    forward: bool
    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class ProcessTrack:
    """All lanes of one process, with the steps that they show. Times in nanoseconds of the trace's clock."""

    rank: int | None
    host: str | None
    clock: str
    epoch_ns: int | None
    path: str
    lanes: list[Lane]
    texts: list[str]
    steps: list[tuple[str, int, int]]
    marks: list[int]  # of each step, when its mark begins: before it, if the host is ahead of the device
    window: tuple[int, int]
    passes: list[list[PipelinePass]]  # of each step
    notes: list[str] = field(default_factory=list)
    cpu: bool = False  # operators stand in for kernels


Texts = dict[str, int]
"""Each distinct text once, with its index."""


def _index(texts: Texts, text: str) -> int:
    return texts.setdefault(text[:_LONGEST_NAME], len(texts))


def process_track(m: MeasuredProcess) -> ProcessTrack:
    """The track over the counted steps of one process; without any, over the windows of its devices (at least one)."""
    rows = np.flatnonzero(m.steps.counted)
    labels = m.steps.labels
    steps = [(labels[i], int(m.steps.start_ns[i]), int(m.steps.end_ns[i])) for i in rows]
    marks = [int(m.steps.mark_start_ns[i]) for i in rows]
    window = (min(steps[0][1], marks[0]), steps[-1][2]) if steps else extent_of(m.windows)
    texts: Texts = {}
    main, others = _ranges(m, window, texts)
    every = [*main, *_idle(m, window, texts), *_streams(m, window, texts), *others]
    identity = m.view.trace.identity
    return ProcessTrack(
        rank=m.view.rank,
        host=identity.host,
        clock=m.view.clock,
        epoch_ns=m.view.epoch_ns,
        path=identity.path,
        lanes=[lane for lane in every if len(lane)],
        texts=list(texts),
        steps=steps,
        marks=marks,
        window=window,
        passes=_passes(m, steps),
        cpu=m.view.on_cpu,
    )


def _passes(m: MeasuredProcess, step_windows: list[tuple[str, int, int]]) -> list[list[PipelinePass]]:
    found = microbatches(m.view, m.nesting, m.owner)
    if found is None:
        return []
    return [
        [
            PipelinePass(
                rank=m.view.rank,
                stage=int(found.stage[i]),
                forward=bool(found.forward[i]),
                number=int(found.number[i]),
                start_ns=int(found.start_ns[i]) - begin,
                end_ns=int(found.end_ns[i]) - begin,
            )
            for i in np.flatnonzero(found.of_step(m.steps, begin, end))
        ]
        for _, begin, end in step_windows
    ]


def _shown(start: I64, end: I64, window: tuple[int, int]) -> NDArray[np.bool_]:
    return (end > window[0]) & (start < window[1]) & (end > start)


def _ranges(m: MeasuredProcess, window: tuple[int, int], texts: Texts) -> tuple[list[Lane], list[Lane]]:
    """Rows of nested ranges: of the main thread, and of the other threads with most ranges."""
    ranges = m.view.ranges
    shown = _shown(ranges.start_ns, ranges.end_ns, window)
    nested = shown & (ranges.kind != RangeKind.START_END)
    depth = _depths(m.nesting.own_parent)
    main = m.nesting.main_thread
    found: dict[bool, list[Lane]] = {True: [], False: []}
    for thread in _threads(ranges.thread[nested], main):
        label = "ranges" if thread == main else f"ranges, thread {thread}"
        mine = nested & (ranges.thread == thread)
        deepest = _DEEPEST if thread == main else _DEEPEST // 2
        for level in range(min(int(depth[mine].max(initial=-1)) + 1, deepest)):
            rows = np.flatnonzero(mine & (depth == level))
            found[thread == main].append(_range_lane(m, rows, label if level == 0 else "", texts))
    crossing = np.flatnonzero(shown & (ranges.kind == RangeKind.START_END))
    order = crossing[np.argsort(ranges.start_ns[crossing], kind="stable")]
    for number, rows in enumerate(_apart(order, ranges.start_ns, ranges.end_ns)[: _DEEPEST // 2]):
        found[False].append(_range_lane(m, rows, "start/end ranges" if number == 0 else "", texts))
    return found[True], found[False]


def _range_lane(m: MeasuredProcess, rows: NDArray[np.intp], label: str, texts: Texts) -> Lane:
    ranges = m.view.ranges
    text = _text_indices(m.view.names, ranges.name[rows], texts)
    code = np.full(len(rows), _RANGE, np.uint8)
    return Lane("ranges", label, -1, ranges.start_ns[rows], ranges.end_ns[rows], text, code)


def _text_indices(names: list[str], column: NDArray[Any], texts: Texts) -> NDArray[np.int64]:
    """Indices of names as indices of texts."""
    used, inverse = np.unique(column, return_inverse=True)
    return np.array([_index(texts, names[int(i)]) for i in used], np.int64)[inverse]


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


def _apart(rows: NDArray[np.intp], start: I64, end: I64) -> list[NDArray[np.intp]]:
    """Rows, sorted by start, as lists of rows without overlaps."""
    lane = lanes(start[rows], end[rows], np.zeros(len(rows), np.int64))
    return [rows[lane == number] for number in range(int(lane.max(initial=-1)) + 1)]


def _idle(m: MeasuredProcess, window: tuple[int, int], texts: Texts) -> Iterator[Lane]:
    """Per device its gaps, each with the cause of most of its time."""
    for device in m.rows:
        gaps = clip(idle_of(m, device), *window)
        if len(gaps.start) == 0:
            continue
        cause, row = m.idle[device].within(gaps)
        text = _idle_texts(m, device, cause.astype(np.int64), row.astype(np.int64), texts)
        yield Lane("idle", "idle", device, gaps.start, gaps.end, text, cause)


def _idle_texts(m: MeasuredProcess, device: int, causes: I64, row: I64, texts: Texts) -> NDArray[np.int64]:
    """Each gap's cause, and what the host did where that is known."""
    pair, inverse = np.unique(causes * (1 << 32) + row + 1, return_inverse=True)

    def say(code: int) -> str:
        what = what_of(m, device, code % (1 << 32) - 1)
        return f"idle: {cause_word(CAUSES[code >> 32], m.view.on_cpu)}" + (f" · {what}" if what else "")

    return np.array([_index(texts, say(code)) for code in pair.tolist()], np.int64)[inverse]


def _streams(m: MeasuredProcess, window: tuple[int, int], texts: Texts) -> Iterator[Lane]:
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
                text = _text_indices(m.view.names, events.name[apart], texts)
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


def _kind_codes(m: MeasuredProcess) -> U8:
    """For each label of the measurement its index in KINDS."""
    index = {kind: i for i, kind in enumerate(KINDS)}

    def of(kind: str) -> int:
        return index["memory"] if kind.startswith(("copy", "memset")) else index.get(kind, index["other"])

    return np.array([of(kind) for kind, _ in m.kinds.labels], np.uint8)


def _stream_label(m: MeasuredProcess, rows: NDArray[np.intp], stream: int) -> str:
    """The stream's number, and the work that takes most of its time."""
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


def _remarks(m: MeasuredProcess, texts: Texts) -> dict[int, int]:
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

    return {int(rows.event[i]): _index(texts, say(i)) for i in np.flatnonzero(rows.event >= 0).tolist()}


Ranks = frozenset[int] | None  # None: of every process


@dataclass(frozen=True)
class PageData:
    """One process. `track`: None where not wanted."""

    rank: int | None
    path: str
    track: ProcessTrack | None


def page_data_of(m: MeasuredProcess, ranks: Ranks = None) -> list[PageData]:
    """One process, with its track where its rank is among `ranks`. Empty for a process without work on any device."""
    if not m.windows:
        return []
    rank = m.view.rank
    wanted = ranks is None or rank in ranks
    return [PageData(rank=rank, path=m.view.trace.identity.path, track=process_track(m) if wanted else None)]


def read_page_data(
    files: Sequence[Path], window: Window, ranks: Ranks, warmup: int = 0, progress: OnProgress = silent
) -> list[PageData]:
    """The processes of traces that were measured elsewhere or earlier, without so many first steps. Files that cannot
    be read are left out."""
    reduce = partial(page_data_of_trace, window=window, rules=load_rules(), ranks=ranks, warmup=warmup)
    outcomes = map_traces(files, reduce, progress=progress)
    return [one for outcome in outcomes if not isinstance(outcome, TraceError) for one in outcome]


def page_data_of_trace(
    trace: Trace, window: Window, rules: Rules, ranks: Ranks = None, warmup: int = 0
) -> list[PageData]:
    return [one for view in views(trace) for one in page_data_of(prepare_process(view, window, rules, warmup), ranks)]
