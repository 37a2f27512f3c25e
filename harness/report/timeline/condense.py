"""What the page takes from the traces: strips to zoom into, bins for the heatmap, a pipeline's Gantt chart, and
what runs beside communication. Traces are read once, several at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from harness.analysis.process.breakdown import COMMUNICATION, NOT_WORK
from harness.analysis.process.intervals import lengths_within
from harness.analysis.process.kinds import Rules, load_rules
from harness.analysis.process.pipeline import microbatches
from harness.analysis.process.prepared import Measured, inside, prepare
from harness.analysis.process.view import views
from harness.analysis.summary import Summary, Window
from harness.common.paths import PROGRAM
from harness.report.timeline.tracks import Strip, make_strip
from harness.traces import TraceError, map_traces
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import F64, Trace

MOST_RANKS = 8  # strips of so many ranks go into a page
MOST_EVENTS = 300_000  # of all strips together: about 3 MB of a page
BINS = 200


@dataclass(frozen=True)
class Choice:
    """What to draw: ranks (None: every process), and which of the counted steps."""

    ranks: frozenset[int] | None
    first_step: int
    steps: int
    events_each: int
    bin_ns: int
    usual: int = 0  # of the shown steps the most usual one: whose pipeline is drawn


@dataclass(frozen=True)
class DeviceBins:
    """One device's window in bins of equal length: the share of each that is compute, communication, both."""

    rank: int | None
    device: int
    compute: F64
    communication: F64
    overlap: F64


@dataclass(frozen=True)
class Pass:
    """One forward or backward of one micro-batch on one stage; nanoseconds since its step's start on its rank."""

    rank: int | None
    stage: int
    forward: bool
    number: int
    start_ns: int
    end_ns: int


@dataclass
class Drawn:
    """What one trace, or all of them, give to the page. `hidden`: kind -> its time, of it in communication."""

    strips: list[Strip] = field(default_factory=list)
    bins: list[DeviceBins] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    hidden: dict[str, tuple[int, int]] = field(default_factory=dict)


def choose(s: Summary, ranks: frozenset[int] | None = None, runs: int = 1) -> Choice:
    """Ranks and steps that fit into a page of so many runs, from the Summary alone: no trace is read for it.

    Shown by default: all ranks when they are few, else the first and last, the fastest and slowest, those
    that others wait for, one of each stage, and evenly spread ones.
    """
    known = [r for r in s.ranks if r is not None]
    chosen = ranks if ranks is not None else _worth_showing(s, known)
    count = max(len(chosen) if chosen is not None else len(s.devices), 1)
    lengths = next((r.durations_ns for r in s.steps.per_rank if r.durations_ns), [])
    each = MOST_EVENTS // (count * runs)
    per_step = max((d.gpu_events for d in s.devices), default=1) / max(
        s.steps.found // max(len(s.devices), 1), 1
    )
    steps = max(1, min(len(lengths), int(each / max(per_step, 1))))
    longest = max((d.window_ns for d in s.devices), default=1)
    first = _most_usual(lengths, steps)
    usual = _most_usual(lengths[first : first + steps], 1)
    return Choice(chosen, first, steps, each, max(-(-longest // BINS), 1), usual)


def _most_usual(lengths: Sequence[int], steps: int) -> int:
    """Where the `steps` consecutive steps begin whose median is nearest to that of all."""
    if len(lengths) <= steps:
        return 0
    usual = median(lengths)
    return min(
        range(len(lengths) - steps + 1), key=lambda i: (abs(median(lengths[i : i + steps]) - usual), i)
    )


def _worth_showing(s: Summary, known: Sequence[int]) -> frozenset[int] | None:
    if len(known) < len(s.devices) and len(s.devices) <= MOST_RANKS:
        return None
    if len(known) <= MOST_RANKS:
        return frozenset(known)
    medians = {r.rank: r.median_ns for r in s.steps.per_rank if r.rank is not None and r.median_ns}
    wanted = [known[0]]
    if medians:
        wanted += [max(medians, key=lambda r: medians[r]), min(medians, key=lambda r: medians[r])]
    wanted += [x.rank for x in s.stragglers]
    wanted += [x.rank for x in s.pipeline.per_stage if x.rank is not None] if s.pipeline else []
    wanted += [known[-1], *known[:: max(len(known) // MOST_RANKS, 1)]]
    return frozenset(list(dict.fromkeys(wanted))[:MOST_RANKS])


def notes(s: Summary, choice: Choice, strips: Sequence[Strip]) -> list[str]:
    """What of the job the timeline leaves out, and how to have it."""
    told: list[str] = []
    if choice.ranks is not None and len(strips) < len(s.ranks):
        told.append(
            f"{len(strips)} of {len(s.ranks)} ranks are here; {PROGRAM} report RUN --ranks 3,17 puts others in"
        )
    counted = max((len(r.durations_ns) for r in s.steps.per_rank), default=0)
    if choice.steps < counted:
        told.append(f"{choice.steps} of {counted} counted steps are here, around the usual one")
    return told


def draw(s: Summary, choice: Choice, workers: int | None = None, progress: OnProgress = silent) -> Drawn:
    """Read the Summary's traces again and condense them. Files that are gone by now are left out."""
    files = [path for path in dict.fromkeys(Path(x.path) for x in s.sources) if path.exists()]
    condense = partial(draw_trace, choice=choice, rules=load_rules(), window=s.window)
    together = Drawn()
    for outcome in map_traces(files, condense, workers=workers, progress=progress):
        if not isinstance(outcome, TraceError):
            _add(together, outcome)
    together.strips.sort(key=lambda x: (-1 if x.rank is None else x.rank, x.path))
    together.bins.sort(key=lambda x: (-1 if x.rank is None else x.rank, x.device))
    return together


def _add(to: Drawn, more: Drawn) -> None:
    to.strips += more.strips
    to.bins += more.bins
    to.passes += more.passes
    for kind, (total, beside) in more.hidden.items():
        before = to.hidden.get(kind, (0, 0))
        to.hidden[kind] = (before[0] + total, before[1] + beside)


def draw_trace(trace: Trace, choice: Choice, rules: Rules, window: Window) -> Drawn:
    """What one trace gives."""
    drawn = Drawn()
    for view in views(trace):
        m = prepare(view, window, rules)
        if not m.windows:
            continue
        drawn.bins += [_bins(m, device, choice.bin_ns) for device in m.rows]
        drawn.hidden.update(_merged(drawn.hidden, _hidden(m)))
        if choice.ranks is not None and view.rank not in choice.ranks:
            continue
        strip = make_strip(m, choice.first_step, choice.steps, choice.events_each)
        if strip is not None:
            drawn.strips.append(strip)
            drawn.passes += _passes(m, strip, choice.usual)
    return drawn


def _merged(
    before: Mapping[str, tuple[int, int]], more: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    return {k: (t + before.get(k, (0, 0))[0], b + before.get(k, (0, 0))[1]) for k, (t, b) in more.items()}


def _bins(m: Measured, device: int, bin_ns: int) -> DeviceBins:
    start, end = m.windows[device]
    edges = np.minimum(start + bin_ns * np.arange(BINS + 1, dtype=np.int64), end)
    length = np.maximum(edges[1:] - edges[:-1], 1)
    sets = m.busy[device]
    compute, communication, both = (
        lengths_within(x, edges[:-1], edges[1:]) / length
        for x in (sets.compute, sets.communication, sets.overlap)
    )
    beyond = edges[1:] == edges[:-1]
    for share in (compute, communication, both):
        share[beyond] = np.nan
    return DeviceBins(m.view.rank, device, compute, communication, both)


def _hidden(m: Measured) -> dict[str, tuple[int, int]]:
    """Per kind of work its time in the windows, and how much of it ran while the same device communicated."""
    events, chosen = m.view.events, inside(m)
    chosen &= ~np.isin(m.kinds.event_class, (COMMUNICATION, NOT_WORK))
    beside = np.zeros(len(events), np.int64)
    for device, rows in m.rows.items():
        beside[rows] = lengths_within(
            m.busy[device].communication, events.start_ns[rows], events.end_ns[rows]
        )
    code = m.kinds.code[chosen]
    size = len(m.kinds.labels)
    total = np.bincount(code, (events.end_ns - events.start_ns)[chosen], size)
    shared = np.bincount(code, beside[chosen], size)
    labels = [" ".join(filter(None, label)) for label in m.kinds.labels]
    return {label: (int(t), int(b)) for label, t, b in zip(labels, total, shared, strict=True) if t}


def _passes(m: Measured, strip: Strip, step: int) -> list[Pass]:
    """The micro-batches of one of the shown steps."""
    found = microbatches(m.view, m.nesting, m.owner)
    if found is None or step >= len(strip.steps):
        return []
    _, begin, end = strip.steps[step]
    return [
        Pass(
            rank=strip.rank,
            stage=int(found.stage[i]),
            forward=bool(found.forward[i]),
            number=int(found.number[i]),
            start_ns=int(found.start_ns[i]) - begin,
            end_ns=int(found.end_ns[i]) - begin,
        )
        for i in np.flatnonzero(found.of_step(m.steps, begin, end))
    ]
