"""Which lines of the user's code a process's time was in: the host's by its sampled lines, a kernel's by the line that
launched it, by step and slot of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.analysis.process.idle import COMMUNICATION, NOT_WORK
from harness.analysis.process.intervals import Intervals, difference, distinct, lengths_within
from harness.analysis.process.prepared import MeasuredProcess
from harness.replay.graph.builder import HostSegments, HostThread
from harness.replay.graph.device import categories_of
from harness.replay.graph.graph import N_PHASES, SLOTS, LineTimes, TimeCategory, slot
from harness.traces.sampled_lines import UNSEEN, CodeLine, LineStretches, SampledLines
from harness.traces.trace import I64

LONG_NS = 2_000_000  # a segment of the host, at whose borders, as at those of stalls and phases, a line rather begins
NO_TIMES = LineTimes(*(np.empty(0, np.int64),) * 4)


class HostSteps(NamedTuple):
    """When the counted steps begin on the host, and when the last one ends."""

    begin_ns: I64
    end_ns: int

    def of(self, moment_ns: I64) -> I64:
        """The step of each moment; -1: in none."""
        step = np.searchsorted(self.begin_ns, moment_ns, side="right") - 1
        return np.where(moment_ns < self.end_ns, step, -1)


def line_times(
    m: MeasuredProcess, lines: SampledLines | None, thread: HostThread, steps: HostSteps
) -> tuple[list[CodeLine], LineTimes]:
    """The lines that have some time, and the times of one process. thread: with all its nodes."""
    if lines is None:
        return [], NO_TIMES
    edge, usual = thread.segments.edge, thread.segments.usual_ns
    long = (np.diff(edge) >= LONG_NS) | (np.diff(edge) > usual)
    enters = edge[1:-1][np.diff(thread.segments.slot.astype(np.int64) % N_PHASES) != 0]
    stretches = lines.stretches(np.unique(np.concatenate([edge[:-1][long], edge[1:][long], enters])))
    looks = _looks(lines, thread.segments, steps)
    parts = [*_of_host(m, stretches, thread, steps, looks), _of_activities(stretches, thread.activities, steps)]
    if not m.view.on_cpu:
        parts.append(_of_kernels(m, stretches, steps))
    times = _summed([_with_unseen(_joined(parts), looks)])
    used, place = np.unique(times.line_number, return_inverse=True)
    none = int(len(used) > 0 and used[0] < 0)  # -1 stays -1
    return [lines.places[i] for i in used[none:].tolist()], times._replace(line_number=place.reshape(-1) - none)


class _Pieces(NamedTuple):
    """Stretches so short that each is in one step, at one place, in one segment."""

    step: I64
    line_number: I64
    segment: I64
    start_ns: I64
    ns: I64


def _pieces(lines: LineStretches, segments: HostSegments, steps: HostSteps, *more: I64) -> _Pieces:
    edges = distinct(segments.edge, lines.start_ns, lines.end_ns, steps.begin_ns, np.array([steps.end_ns]), *more)
    edges = edges[(edges >= segments.edge[0]) & (edges <= segments.edge[-1])]
    start, step = edges[:-1], steps.of(edges[:-1])
    segment = np.searchsorted(segments.edge, start, side="right") - 1
    kept = step >= 0
    return _Pieces(step[kept], lines.at(start[kept]), segment[kept], start[kept], np.diff(edges)[kept])


def _looks(lines: SampledLines, segments: HostSegments, steps: HostSteps) -> LineTimes:
    """How often each place was seen in segments of each slot, and, where these are longer than usual, in the slot of
    what is more; empty where not every look was recorded."""
    step = steps.of(lines.seen_ns)
    segment = np.searchsorted(segments.edge, lines.seen_ns, side="right") - 1
    length = np.diff(segments.edge)
    inside = (step >= 0) & (segment >= 0) & (segment < len(length)) & lines.has_each_look
    step, segment, place = step[inside], segment[inside], lines.line_number[inside].astype(np.int64)
    more = (length > segments.usual_ns)[segment]
    own, excess = (of[segment].astype(np.int64) for of in (segments.slot, segments.excess))
    return LineTimes(
        np.append(step, step[more]),
        np.append(own, excess[more]),
        np.append(place, place[more]),
        np.ones(len(step) + np.count_nonzero(more), np.int64),
    )


def _of_host(
    m: MeasuredProcess, lines: LineStretches, thread: HostThread, steps: HostSteps, looks: LineTimes
) -> list[LineTimes]:
    """What of each segment is usual belongs to its own slot, the rest to that of what is more than usual. Where looks
    are known, a segment that is too short to be seen each time has no place of its own."""
    segments = thread.segments
    _, time, since = thread.ordered()
    since, until = np.clip(since[1:], time[:-1], time[1:]), time[1:]
    since, until = since[since < until], until[since < until]  # from when to when the host waited
    pieces = _pieces(lines, segments, steps, since, until)
    wait = np.searchsorted(since, pieces.start_ns, side="right") - 1
    waits = (wait >= 0) & (pieces.start_ns < np.append(until, 0)[wait])
    own, excess = (of[pieces.segment].astype(np.int64) for of in (segments.slot, segments.excess))
    waiting = TimeCategory.TRANSFER if m.view.on_cpu else TimeCategory.WAIT_TAIL
    own = np.where(waits, waiting * N_PHASES + own % N_PHASES, own)
    if len(looks.ns):
        short = ~waits & (np.diff(segments.edge) < LONG_NS)[pieces.segment]
        pieces = pieces._replace(line_number=np.where(short, UNSEEN, pieces.line_number))
    usual = segments.usual_ns / np.maximum(np.diff(segments.edge), 1)
    some = np.rint(pieces.ns * np.where(waits, 1.0, usual[pieces.segment])).astype(np.int64)
    parts = ((own, some), (excess, pieces.ns - some))
    return [LineTimes(pieces.step, of, pieces.line_number, ns) for of, ns in parts]


def _of_activities(lines: LineStretches, activities: HostSegments, steps: HostSteps) -> LineTimes:
    pieces = _pieces(lines, activities, steps)
    number = activities.slot[pieces.segment].astype(np.int64) - 1
    kept = number >= 0
    return LineTimes(pieces.step[kept], SLOTS + number[kept], pieces.line_number[kept], pieces.ns[kept])


def _of_kernels(m: MeasuredProcess, lines: LineStretches, steps: HostSteps) -> LineTimes:
    """Of communication, what is not hidden by kernels that compute."""
    events = m.view.events
    launched = (events.launch_ns >= 0) & (m.kinds.event_class != NOT_WORK)
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(r.start, r.stop) for r in m.rows.values())])
    rows = rows[launched[rows]]
    step = steps.of(events.launch_ns[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    ns = events.end_ns[rows] - events.start_ns[rows]
    sent = m.kinds.event_class[rows] == COMMUNICATION
    for device, sets in m.busy.items():
        own = np.flatnonzero(sent & (events.device[rows] == device))
        exposed: Intervals = difference(sets.communication, sets.compute)
        ns[own] = lengths_within(exposed, events.start_ns[rows[own]], events.end_ns[rows[own]])
    of = slot(0) + N_PHASES * np.where(sent, TimeCategory.TRANSFER, categories_of(m)[rows])
    return LineTimes(step, of, lines.at(events.launch_ns[rows]), ns)


def _joined(line_times: Sequence[LineTimes]) -> LineTimes:
    return LineTimes(*map(np.concatenate, zip(NO_TIMES, *line_times, strict=True)))


def _with_unseen(times: LineTimes, looks: LineTimes) -> LineTimes:
    """The time in which nobody looked is at the places of the same slot, as often as these were seen: in the same step,
    else in all of them, since looks come at any moment; without looks, as long as it was at them."""
    unseen = times.line_number == UNSEEN
    found = [LineTimes(*(column[~unseen] for column in times))]
    for of in np.unique(times.slot[unseen]).tolist():
        rows = unseen & (times.slot == of)
        step, which = np.unique(times.step[rows], return_inverse=True)
        by_step = np.bincount(which, times.ns[rows])
        seen = _of_slot(looks, of) if (looks.slot == of).any() else _of_slot(found[0], of)
        place, which = np.unique(np.append(seen.line_number, -1), return_inverse=True)
        at, count = which[:-1].reshape(-1), len(place)
        everywhere = np.bincount(at, seen.ns, count) if len(at) else np.ones(count)
        same = np.isin(seen.step, step)
        key = np.searchsorted(step, seen.step[same]) * count + at[same]
        by_place = np.bincount(key, seen.ns[same], len(step) * count).reshape(len(step), count)
        by_place[by_place.sum(axis=1) == 0] = everywhere
        ns = (by_place * (by_step / np.maximum(by_place.sum(axis=1), 1))[:, None]).round().astype(np.int64)
        found.append(LineTimes(np.repeat(step, count), np.full(ns.size, of), np.tile(place, len(step)), ns.ravel()))
    return _joined(found)


def _of_slot(times: LineTimes, of: int) -> LineTimes:
    return LineTimes(*(column[times.slot == of] for column in times))


def _summed(line_times: list[LineTimes]) -> LineTimes:
    """One row for each step, slot and place."""
    step, of, place, ns = _joined(line_times)
    slots, places = 1 + of.max(initial=0), 2 + place.max(initial=0)
    keys, which = np.unique((step * slots + of) * places + place + 1, return_inverse=True)
    sums = np.bincount(which, ns, len(keys)).astype(np.int64)
    keys, sums = keys[sums > 0], sums[sums > 0]
    return LineTimes(keys // places // slots, keys // places % slots, keys % places - 1, sums)
