"""Which stretches of time are training steps of one process, and which of them count.

In order of trust: torch.profiler's ProfilerStep marks; NVTX or record_function ranges with a number (`batch_7`,
`iteration_3`); and, in a program without such marks, the periodicity of a kernel that recurs evenly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.breakdown import Busy
from harness.analysis.process.by_name import used
from harness.analysis.process.intervals import lengths_within
from harness.traces.trace import I64, Activity, Events, RangeKind, Ranges

WARMUP_FACTOR = 2.0  # a leading step this many times longer than the median of the others is warm-up
MIN_PERIODS, MAX_PERIODS = 4, 5000  # fewer repetitions are no periodicity, more are no steps
EVEN = 1.5  # 90th over 10th percentile of the periods
COVERED = 0.7  # of the device's time
_COUNTING = re.compile(
    r"^(?:##\s*)?(batch|iteration|iter|(?:train|training|global)[_ ]?step|step)[ _#:=-]*(\d+)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(\d+)")
_PERIODICITY = "periodicity"
_TRUST = ("iteration", "iter", "global", "train", "step", "batch")  # the outer unit first


@dataclass(frozen=True)
class ProcessSteps:
    """Steps of one process in time order. `counted` marks the steps that every number is about. All length n."""

    source: str
    names: list[str]
    start_ns: I64
    end_ns: I64
    counted: NDArray[np.bool_]
    warmup: int = 0
    cut_off: int = 0
    empty: int = 0
    empty_between: int = 0  # empty steps between counted ones, and so inside the window
    thread: int | None = None  # the thread with the marks

    @property
    def window(self) -> tuple[int, int] | None:
        """First counted step's start and last counted step's end."""
        chosen = np.flatnonzero(self.counted)
        return (int(self.start_ns[chosen[0]]), int(self.end_ns[chosen[-1]])) if len(chosen) else None


NO_STEPS = ProcessSteps("none", [], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


def step_numbers(steps: ProcessSteps) -> list[int]:
    """What tells a counted step of one rank from the same of another: the number in its mark, where these count up;
    else its place from the last one backwards, from -1."""
    names = [steps.names[i] for i in np.flatnonzero(steps.counted)]
    found = [] if by_periodicity(steps.source) else [_NUMBER.search(name) for name in names]
    numbers = [int(match.group(1)[:18]) for match in found if match is not None]
    if len(numbers) == len(names) and all(a < b for a, b in pairwise(numbers)):
        return numbers
    return list(range(-len(names), 0))


def by_periodicity(source: str) -> bool:
    """Whether steps of this source are a kernel's periodicity, because nothing in the program marks a step."""
    return source.startswith(_PERIODICITY)


def find_steps(
    ranges: Ranges, events: Events, names: list[str], busy: list[Busy], until_ns: int | None = None
) -> ProcessSteps:
    """The steps of one process. All count but steps that are cut off, empty or warm-up.

    `until_ns`: the trace is complete up to here.
    """
    marked = np.flatnonzero(ranges.kind == RangeKind.STEP)
    if len(marked):
        found: ProcessSteps | None = _marks("ProfilerStep", marked, ranges, names)
    else:
        found = _counting_ranges(ranges, names) or _periodic_steps(events, names)
    return _judge(found, events, busy, until_ns) if found else NO_STEPS


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


def _marks(source: str, rows: NDArray[np.intp], ranges: Ranges, names: list[str]) -> ProcessSteps:
    """Steps from range rows; where several threads have marks, the marks of the thread with most of them."""
    threads, counts = np.unique(ranges.thread[rows], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    rows = rows[ranges.thread[rows] == thread]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    labels = [names[i] for i in ranges.name[rows]]
    closed = ranges.is_open[rows] == 0
    return ProcessSteps(source, labels, ranges.start_ns[rows], ranges.end_ns[rows], closed, thread=thread)


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
    by_name = kernels[
        np.argsort(events.name[kernels], kind="stable")
    ]  # one sort, not one search per candidate
    ends = np.cumsum(counts)
    for name in np.argsort(counts, kind="stable"):
        count = int(counts[name])
        if not MIN_PERIODS < count <= MAX_PERIODS:
            continue
        starts = events.start_ns[by_name[ends[name] - count : ends[name]]]
        periods = np.diff(starts)
        low, high = np.quantile(periods, (0.1, 0.9))
        if low > 0 and high / low < EVEN and periods.sum() >= COVERED * extent:
            source = f"{_PERIODICITY} of {names[name][:80]}"
            labels = [f"period {i}" for i in range(len(periods))]
            return ProcessSteps(source, labels, starts[:-1], starts[1:], np.ones(len(periods), np.bool_))
    return None


def _judge(steps: ProcessSteps, events: Events, busy: list[Busy], until_ns: int | None) -> ProcessSteps:
    """Exclude steps that were cut off, that did nothing on any device, and warm-up."""
    complete = steps.counted & (steps.end_ns > steps.start_ns) & (steps.start_ns >= 0)
    if until_ns is not None:
        complete &= steps.end_ns <= until_ns
    work = sum(
        (lengths_within(b.any, steps.start_ns, steps.end_ns) for b in busy), np.zeros(len(complete), int)
    )
    worked = work > 0 if len(events) else complete  # a trace of ranges alone cannot tell an empty step
    counted = complete & worked
    warmup = leading_warmup((steps.end_ns - steps.start_ns)[counted])
    counted[np.flatnonzero(counted)[:warmup]] = False
    empty, at = complete & ~worked, np.flatnonzero(counted)
    return replace(
        steps,
        counted=counted,
        warmup=warmup,
        cut_off=int((~complete).sum()),
        empty=int(empty.sum()),
        empty_between=int(empty[at[0] : at[-1]].sum()) if len(at) else 0,
    )


def leading_warmup(durations: I64) -> int:
    """How many leading steps are warm-up: each longer than WARMUP_FACTOR medians of all later ones."""
    n = 0
    while n + 3 < len(durations) and durations[n] > WARMUP_FACTOR * np.median(durations[n + 1 :]):
        n += 1
    return n
