"""Which stretches of time are training steps of one process, and which of them count.

In order of trust: torch.profiler's ProfilerStep marks; NVTX or record_function ranges with a number (`batch_7`,
`iteration_3`); where there is none, or several are in each, PyTorch's own ranges of the optimizer; ranges of forward
with as many of backward or the optimizer; and, in a program without any of them, the periodicity of a kernel that
recurs evenly.

A step is the period from its mark's start to the next mark's start; the last one ends with its mark. So the steps fill
the window, and no threshold decides which ranks' steps are periods. Where the host is ahead of the device, they are the
periods of the work that they launched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.host_calls import LaunchTimes
from harness.analysis.process.idle import Busy
from harness.analysis.process.intervals import EMPTY, Intervals, lengths_within
from harness.analysis.process.optimizer_steps import CountedSteps, optimizer_steps, passes
from harness.traces.trace import I64, Activity, Events, RangeKind, Ranges
from harness.traces.vocabulary import is_communication

WARMUP_FACTOR = 2.0  # a leading step this many times longer than the median of the others is warm-up
MIN_PERIODS, MAX_PERIODS = 4, 5000  # fewer repetitions are no periodicity, more are no steps
EVEN = 1.5  # 90th over 10th percentile of the periods
COVERED = 0.9  # of the device's time
AHEAD = 0.1  # of a step: by so much the device must be behind the host
KNOWN_LAUNCHES = 0.9  # of the work: with fewer it is not known which step work belongs to
LOST_SOME = 0.01  # of the launches: whole recordings have up to 0.4 % without work
LOST_FEWEST = 4  # launches: whole recordings have up to three without work
LEAST_WHOLE = 2  # steps that have all their work, of which numbers are told
_COUNTING = re.compile(
    r"^(?:##\s*)?(batch|iteration|iter|(?:train|training|global)[_ ]?step|step)[ _#:=-]*(\d+)\b", re.IGNORECASE
)
_NUMBER = re.compile(r"(\d+)")
_PERIODICITY = "periodicity"
_TRUST = ("iteration", "iter", "global", "train", "step", "batch")  # the outer unit first


@dataclass(frozen=True)
class ProcessSteps:
    """Steps of one process in time order. `counted` marks the steps that every number is about. All length n.

    start_ns, end_ns: the step. mark_start_ns, mark_end_ns: its mark on the host. Where the host is ahead (`on_device`),
    a step is on the device: from the first start of the work that it launched on the busiest stream, `first_event`, a
    row of the process's events, to that of the next step; `last_event` is the row with which the last counted one ends.
    """

    source: str
    names: list[str]
    start_ns: I64
    end_ns: I64
    counted: NDArray[np.bool_]
    mark_start_ns: I64
    mark_end_ns: I64
    warmup: int = 0
    cut_off: int = 0
    empty_rows: I64 = field(default_factory=lambda: EMPTY.start)  # steps without work on any device
    left_out: int = 0  # a part of their work is not in the file, or they are apart from most of those that have all
    thread: int | None = None  # the thread with the marks
    between: Intervals = EMPTY  # on the host, from a mark's end to the start of the next
    on_device: bool = False
    first_event: I64 = field(default_factory=lambda: EMPTY.start)  # -1: it launched nothing there
    last_event: int = -1
    ahead: int | None = None  # of the marks' numbers, by so much, are those by which the training counts its steps

    @property
    def labels(self) -> list[str]:
        """What each step is called: by the training's own number if it is known, else by its mark."""
        return self.names if self.ahead is None else [f"step {n + self.ahead}" for n in map(_number, self.names)]

    @property
    def window(self) -> tuple[int, int] | None:
        """First counted step's start and last counted step's end."""
        chosen = np.flatnonzero(self.counted)
        return (int(self.start_ns[chosen[0]]), int(self.end_ns[chosen[-1]])) if len(chosen) else None

    @property
    def marked_window(self) -> tuple[int, int] | None:
        """The same on the host: first counted mark's start and last counted mark's end."""
        chosen = np.flatnonzero(self.counted)
        return (int(self.mark_start_ns[chosen[0]]), int(self.mark_end_ns[chosen[-1]])) if len(chosen) else None

    @property
    def empty(self) -> int:
        """How many steps have no work on any device."""
        return len(self.empty_rows)

    @property
    def empty_between(self) -> int:
        """Empty steps between counted ones, and so inside the window."""
        at = np.flatnonzero(self.counted)
        return int(((self.empty_rows > at[0]) & (self.empty_rows < at[-1])).sum()) if len(at) else 0

    @property
    def durations_ns(self) -> I64:
        """Of the counted steps."""
        return (self.end_ns - self.start_ns)[self.counted]

    @property
    def between_ns(self) -> I64:
        """Of each counted step, its time after its mark; 0 where steps are on the device."""
        if self.on_device:
            return np.zeros(int(self.counted.sum()), np.int64)
        after: I64 = np.maximum(self.end_ns - self.mark_end_ns, 0)[self.counted]
        return after


NO_STEPS = ProcessSteps("none", [], *EMPTY, np.empty(0, np.bool_), *EMPTY)


def counts_steps(name: str) -> bool:
    """Whether a range's name counts steps, as `batch_7` does: it says nothing of what is done inside.

    >>> counts_steps("batch_7"), counts_steps("DataLoad batch 7")
    (True, False)
    """
    return _COUNTING.match(name) is not None


def step_numbers(steps: ProcessSteps) -> list[int]:
    """What tells a counted step of one rank from the same of another: the training's own number, else the one in its
    mark, where these count up; else its place from the last one backwards, from -1."""
    numbers = [_number(steps.labels[i]) for i in np.flatnonzero(steps.counted)]
    if not by_periodicity(steps.source) and min(numbers, default=-1) >= 0 and all(a < b for a, b in pairwise(numbers)):
        return numbers
    return list(range(-len(numbers), 0))


def _number(name: str) -> int:
    """The first number in a name; -1 without one."""
    return int(found[1][:18]) if (found := _NUMBER.search(name)) else -1


def by_periodicity(source: str) -> bool:
    """Whether steps of this source are a kernel's periodicity, because nothing in the program marks a step."""
    return source.startswith(_PERIODICITY)


def find_steps(
    ranges: Ranges,
    events: Events,
    names: list[str],
    busy: list[Busy],
    launches: LaunchTimes,
    *,
    until_ns: int | None,
    least_warmup: int = 0,
) -> ProcessSteps:
    """The steps of one process. All count but steps that are cut off, empty, without a part of their work, or warm-up.

    `until_ns`: the trace is complete up to here. `least_warmup`: so many leading steps are warm-up on another rank.
    """
    marked = np.flatnonzero(ranges.kind == RangeKind.STEP)
    counting = _counting_ranges(ranges, names)
    found = _marks("ProfilerStep", marked, ranges, names) if len(marked) else counting
    if len(marked) and found is not None and counting is not None:
        found = replace(found, ahead=_ahead(found, counting))
    found = _optimizer_steps(found, ranges, events, names) or found
    if found is None and (passed := passes(ranges, names)) is not None:
        found = _counted([passed])
    found = found or _periodic_steps(events, names)
    if found is None:
        return NO_STEPS
    steps = _whole(_judge(found, events, busy, until_ns), launches)
    steps = steps if until_ns is not None else _on_device(steps, events, names)
    warmup, counted = max(leading_warmup(steps.durations_ns), least_warmup), steps.counted.copy()
    counted[np.flatnonzero(counted)[:warmup]] = False
    return replace(steps, counted=counted, warmup=warmup)


def _counting_ranges(ranges: Ranges, names: list[str]) -> ProcessSteps | None:
    """Ranges with a name of a step and a number, such as `iteration_3`: the most trusted name that occurs."""
    by_word: dict[str, list[int]] = {}
    for name in used(ranges.name):
        match = _COUNTING.match(names[name])
        if match:
            by_word.setdefault(match.group(1).lower(), []).append(name)
    if not by_word:
        return None
    word = min(by_word, key=lambda w: next((i for i, t in enumerate(_TRUST) if w.startswith(t)), len(_TRUST)))
    rows = np.flatnonzero(np.isin(ranges.name, by_word[word]))
    return _marks(f"range {word}", rows, ranges, names)


def _ahead(steps: ProcessSteps, counting: ProcessSteps) -> int | None:
    """By how much the numbers of the ranges that the training counts are above those of the marks around them."""
    at = np.searchsorted(steps.start_ns, counting.start_ns, side="right") - 1
    inside = np.flatnonzero((at >= 0) & (counting.start_ns < steps.end_ns[at]))
    found = {_number(counting.names[i]) - _number(steps.names[at[i]]) for i in inside}
    return found.pop() if len(found) == 1 and min(map(_number, steps.names)) >= 0 else None


def _optimizer_steps(
    mark: ProcessSteps | None, ranges: Ranges, events: Events, names: list[str]
) -> ProcessSteps | None:
    """The steps that the optimizer counts, in each of the program's marks if it has some: a mark may be of an epoch."""
    marks = [None] if mark is None else zip(mark.mark_start_ns.tolist(), mark.mark_end_ns.tolist(), strict=True)
    found = list[CountedSteps]()
    for inside in marks:
        counted = optimizer_steps(ranges, events, names, inside)
        if counted is None:
            return None
        found.append(counted)
    return _counted(found)


def _counted(found: Sequence[CountedSteps]) -> ProcessSteps:
    start, end = (np.concatenate([each.bounds_ns[at] for each in found]) for at in (slice(-1), slice(1, None)))
    labels, whole = [found[0].name] * len(start), np.ones(len(start), np.bool_)
    return ProcessSteps(f"range {found[0].name}", labels, start, end, whole, start, end, thread=found[0].thread)


def _marks(source: str, rows: NDArray[np.intp], ranges: Ranges, names: list[str]) -> ProcessSteps:
    """Steps from range rows; where several threads have marks, the marks of the thread with most of them."""
    threads, counts = np.unique(ranges.thread[rows], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    rows = rows[ranges.thread[rows] == thread]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    labels = [names[i] for i in ranges.name[rows]]
    start, end, closed = ranges.start_ns[rows], ranges.end_ns[rows], ranges.is_open[rows] == 0
    followed = np.append(_follow(labels) & (start[1:] > start[:-1]), False)
    until = np.where(followed, np.append(start[1:], 0), end)
    apart = followed & (until > end)
    between = Intervals(end[apart], until[apart])
    return ProcessSteps(source, labels, start, until, closed, start, end, thread=thread, between=between)


def _follow(labels: list[str]) -> NDArray[np.bool_]:
    """Whether each mark but the first is the next step after the one before it: between marks whose numbers are
    farther apart than usual, steps were not recorded. Numbers that begin again are those of the next epoch."""
    numbers = np.array([_number(name) for name in labels], np.int64)
    apart = np.diff(numbers)
    up = apart[apart > 0]
    known = (numbers[1:] >= 0) & (numbers[:-1] >= 0) & (len(up) > 0)
    return ~known | (apart <= (np.median(up) if len(up) else 0))


def _periodic_steps(events: Events, names: list[str]) -> ProcessSteps | None:
    """Steps from one occurrence to the next of a kernel that recurs evenly.

    The rarest such kernel counts: the longest period is the outer unit.
    """
    kernels = np.flatnonzero(events.activity == Activity.KERNEL)
    if len(kernels) == 0:
        return None
    device = events.device[kernels[0]]
    kernels = kernels[events.device[kernels] == device]
    counts = np.bincount(events.name[kernels])
    extent = int(events.end_ns[kernels].max() - events.start_ns[kernels[0]])
    by_name = kernels[np.argsort(events.name[kernels], kind="stable")]  # one sort, not one search per candidate
    ends = np.cumsum(counts)
    for name in np.argsort(counts, kind="stable"):
        count = int(counts[name])
        if not MIN_PERIODS < count <= MAX_PERIODS:
            continue
        starts = events.start_ns[by_name[ends[name] - count : ends[name]]]
        periods = np.diff(starts)
        low, high = np.quantile(periods, (0.1, 0.9))
        # with the one that the last kernel begins; what is not covered, as an optimizer at the end, would be left out
        if low > 0 and high / low < EVEN and periods.sum() + np.median(periods) >= COVERED * extent:
            source = f"{_PERIODICITY} of {names[name][:80]}"
            labels = [f"period {i}" for i in range(len(periods))]
            whole = np.ones(len(periods), np.bool_)
            return ProcessSteps(source, labels, starts[:-1], starts[1:], whole, starts[:-1], starts[1:])
    return None


def _judge(step_ranges: ProcessSteps, events: Events, busy: list[Busy], until_ns: int | None) -> ProcessSteps:
    """Exclude steps that were cut off, and those that did nothing on any device."""
    complete = step_ranges.counted & (step_ranges.end_ns > step_ranges.start_ns) & (step_ranges.start_ns >= 0)
    if until_ns is not None:
        complete &= step_ranges.end_ns <= until_ns
    work = sum(
        (lengths_within(b.any, step_ranges.start_ns, step_ranges.end_ns) for b in busy), np.zeros(len(complete), int)
    )
    worked = work > 0 if len(events) else complete  # a trace of ranges alone cannot tell an empty step
    if not worked[complete].all():
        worked = worked | _launched_work(step_ranges, events)
    empty = np.flatnonzero(complete & ~worked)
    return replace(step_ranges, counted=complete & worked, cut_off=int((~complete).sum()), empty_rows=empty)


def _whole(steps: ProcessSteps, launches: LaunchTimes) -> ProcessSteps:
    """The longest row of steps that have all their work, where some have not, and at least two have."""
    if not are_lost(launches):
        return steps
    launched_ns = launches.start_ns[launches.lost]
    step = np.searchsorted(steps.mark_start_ns, launched_ns, side="right") - 1
    last = max(int(steps.end_ns[-1]), int(steps.mark_end_ns[-1]))
    damaged = np.isin(np.arange(len(steps.names)), step[launched_ns < last])
    edges = np.flatnonzero(np.diff(steps.counted & ~damaged, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins)) if len(begins) else 0
    if not len(begins) or ends[longest] - begins[longest] < LEAST_WHOLE:
        return steps
    counted = np.zeros(len(steps.names), np.bool_)
    counted[begins[longest] : ends[longest]] = True
    return replace(steps, counted=counted, left_out=int(steps.counted.sum() - counted.sum()))


def are_lost(launches: LaunchTimes) -> bool:
    """Whether so many launches have no work that it is not in the file."""
    lost = int(launches.lost.sum())
    return LOST_SOME * len(launches.lost) <= lost and lost >= LOST_FEWEST


def _launched_work(steps: ProcessSteps, events: Events) -> NDArray[np.bool_]:
    """Which steps launched work: it may run when they are over."""
    launched = np.sort(events.launch_ns[_is_launched(events)])
    return np.searchsorted(launched, steps.end_ns) > np.searchsorted(launched, steps.start_ns)


def _on_device(steps: ProcessSteps, events: Events, names: list[str]) -> ProcessSteps:
    """The steps on the device, if the host is ahead of it and the launches are known; else as they are."""
    if steps.thread is None or not steps.counted.any():
        return steps
    work = _Work.of(steps, events, names)
    counted = np.flatnonzero(steps.counted)
    if not np.isin(counted, work.step[work.on_main]).all():
        return steps
    if _behind_ns(steps, events, work) <= AHEAD * np.median(steps.durations_ns):
        return steps
    moved = _moved(steps, events, work)
    in_order = bool((moved.durations_ns > 0).all())
    return moved if in_order and _launches_known(moved, events) else steps


def _is_launched(events: Events) -> NDArray[np.bool_]:
    """Which events are work of a device that began after its known launch."""
    on_device = events.activity <= Activity.MEMSET
    return on_device & (events.launch_ns >= 0) & (events.launch_ns <= events.start_ns)


@dataclass(frozen=True)
class _Work:
    """n events that a step launched, in the order of their launches: their rows, and the step of each. on_main: they
    ran on the stream with most computation, of the device with most work: a stream of copies or messages may run far
    ahead. done_ns: when all launched so far have ended."""

    row: NDArray[np.intp]
    step: I64
    on_main: NDArray[np.bool_]
    done_ns: I64

    @staticmethod
    def of(steps: ProcessSteps, events: Events, names: list[str]) -> _Work:
        row = np.flatnonzero(_is_launched(events))
        row = row[np.argsort(events.launch_ns[row], kind="stable")]
        launched = events.launch_ns[row]
        step = np.searchsorted(steps.start_ns, launched, side="right") - 1
        inside = (step >= 0) & (launched < np.append(steps.end_ns, 0)[step])
        row, step = row[inside], step[inside]
        done = np.maximum.accumulate(events.end_ns[row])
        return _Work(row, step, _on_main_stream(events, row, names), done)


def _on_main_stream(events: Events, row: NDArray[np.intp], names: list[str]) -> NDArray[np.bool_]:
    device, stream = events.device[row], events.stream[row]
    length = (events.end_ns - events.start_ns)[row]
    mine: NDArray[np.bool_] = device == _heaviest(device, length)
    computes = mine & (events.activity[row] == Activity.KERNEL)
    computes &= ~matching(events.name[row], names, is_communication)
    of = computes if computes.any() else mine
    mine &= stream == _heaviest(stream[of], length[of])
    return mine


def _heaviest(label: NDArray[np.integer], weight: I64) -> int:
    """The label with most weight; of no labels, 0."""
    found, of = np.unique(label, return_inverse=True)
    return int(found[np.argmax(np.bincount(of, weights=weight))]) if len(found) else 0


def _behind_ns(steps: ProcessSteps, events: Events, work: _Work) -> float:
    """How long the device still works on what was launched before, when the host launches the first work of a step: the
    median of the steps after the first; negative where the device waits. Of one step alone: how long it works on after
    the step, less how long it waited for the step's first work."""
    rows = np.flatnonzero(steps.counted)
    first = np.searchsorted(work.step, rows)
    if len(rows) > 1:
        return float(np.median(work.done_ns[first[1:] - 1] - events.launch_ns[work.row[first[1:]]]))
    start, end = steps.start_ns[rows[0]], steps.end_ns[rows[0]]
    last = np.searchsorted(work.step, rows[0], side="right") - 1
    waited = events.start_ns[events.end_ns > start].min(initial=end) - start
    return float(work.done_ns[last] - end - max(waited, 0))


def _moved(steps: ProcessSteps, events: Events, work: _Work) -> ProcessSteps:
    """Each step from its first start on the main stream to that of the step that follows it, else to its last end."""
    count = len(steps.names)
    on_main = work.row[work.on_main]
    first = _least_of_each(on_main, work.step[work.on_main], events.start_ns[on_main], count)
    last = _least_of_each(work.row, work.step, -events.end_ns[work.row], count)
    start = np.where(first >= 0, events.start_ns[first], steps.start_ns)
    start = np.where(first >= 0, start, np.maximum.accumulate(start))  # a step without work keeps the order
    follows = np.append((steps.end_ns[:-1] == steps.mark_start_ns[1:]) & (first[1:] >= 0), False)
    end = np.where(follows, np.append(start[1:], 0), np.where(last >= 0, events.end_ns[last], steps.end_ns))
    final = int(last[np.flatnonzero(steps.counted)[-1]])
    return replace(steps, start_ns=start, end_ns=end, on_device=True, first_event=first, last_event=final)


def _least_of_each(row: NDArray[np.intp], step: I64, value: I64, count: int) -> I64:
    """Of each step the row with the least value, -1 without any; the rows are in the order of the steps."""
    found = np.full(count, -1, np.int64)
    for low, high in pairwise([*np.flatnonzero(np.diff(step, prepend=-1)), len(step)]):
        found[step[low]] = row[low + int(np.argmin(value[low:high]))]
    return found


def _launches_known(steps: ProcessSteps, events: Events) -> bool:
    """Whether the launches of nearly all work in the window are known."""
    start, end = steps.window or (0, 0)
    inside = (events.activity <= Activity.MEMSET) & (events.start_ns >= start) & (events.start_ns < end)
    return int((events.launch_ns[inside] >= 0).sum()) >= KNOWN_LAUNCHES * int(inside.sum())


def leading_warmup(durations: I64) -> int:
    """How many leading steps are warm-up: each longer than WARMUP_FACTOR medians of all later ones."""
    n = 0
    while n + 3 < len(durations) and durations[n] > WARMUP_FACTOR * np.median(durations[n + 1 :]):
        n += 1
    return n
