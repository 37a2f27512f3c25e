"""What of a trace can be true: leaves out the rest and says so, before any analysis. Must not know formats or files.

After it, times differ by days at most, so no difference or sum of them leaves 64 bits; devices, ranks and the world
size are numbers that a machine can have, so nothing grows with a number that a file only claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.common.model.alpha_beta import MOST_BYTES_PER_S
from harness.traces.columns import TWICE, AnySpans, distinct, distinct_columns, once, repeated, take
from harness.traces.errors import TraceError
from harness.traces.trace import (
    I64,
    Activity,
    Collectives,
    Events,
    Identity,
    MetricSeries,
    NicSamples,
    RangeKind,
    Ranges,
    Spans,
    Trace,
)

MOST_RANKS = 1 << 24
MOST_DEVICES = 256  # of the largest node: 16 GPUs in 7 parts each
_LARGEST_DEVICE = 1 << 16
_FIRST_NS, _LAST_NS = -(1 << 61), 1 << 62  # the latter is in the year 2116
_LAST_UNIX_NS = _LAST_NS - _FIRST_NS
_LONGEST_NS = 1 << 53
_DAYS = _LONGEST_NS / 1e9 / 86400
_MOST_BYTES = 1 << 46  # of one copy
_MOST_SUM = 1 << 62
_MOST_OPEN = 1000  # ranges of one thread at once, as deep as Python calls nest
_MOST_DIGITS = 20  # of a number in a sentence

Good = NDArray[np.bool_]

# What is wrong with what was left out.
_TIMES = f"calls, ranges or events ended before they started or are over {_DAYS:.0f} days from others"
_DEVICES = "events are on a device whose number no machine has"
_SIZES = "copies are larger than any memory"
_DEPTH = f"ranges are nested in {_MOST_OPEN} others"
_SAMPLES = f"samples of counters are over {_DAYS:.0f} days from the events"
_VALUES = "samples of counters have a value that no counter reaches"
_OVERLAP_NS = 100_000  # a programmatic launch begins microseconds before the end of the one before it
_MOST_LATE = 0.05  # of a device's work; with more, it is not the ends that are wrong
_UNLIKE = 3  # times the median of its name
_FEWEST_ALIKE = 3
_MOST_NAME = 60  # characters of a name in a sentence


class _Stretch(NamedTuple):
    """The time that is reliable."""

    low_ns: int
    high_ns: int

    def holds(self, time_ns: I64) -> Good:
        return (time_ns >= self.low_ns) & (time_ns <= self.high_ns)


_LeftOut = Counter[str]


def sanitize(trace: Trace) -> Trace:
    """The trace without what cannot be true, with a note for each sort of it. Raises TraceError: so much cannot be true
    that nothing of the file is used."""
    stretch, out = _stretch(trace), _LeftOut()
    again = repeated(trace.events)
    good = _good_events(trace.events, stretch, out) & ~again
    events, in_turn = _in_turn(_launched(_kept(trace.events, good), stretch), trace.names)
    communication = _collectives(trace.collectives, good, stretch)
    if again.any():
        notes, host = [*trace.notes, TWICE.format(count=int(again.sum()))], once(trace.host)
        trace = replace(trace, calls=once(trace.calls), ranges=once(trace.ranges), host=host, notes=notes)
    calls = _in_time(trace.calls, stretch, out)
    ranges = _shallow(_in_time(_closed(trace.ranges, events, stretch), stretch, out), out)
    host = _in_time(trace.host, stretch, out)
    if len(distinct(events.device)) > MOST_DEVICES:
        raise TraceError(trace.identity.path, f"is damaged: it has work on more than {MOST_DEVICES} devices")
    if any(map(_sums_too_large, (events, calls, ranges, host))):
        raise TraceError(trace.identity.path, "is damaged: its events together take more than a century")
    until = trace.complete_until_ns
    if until is not None and not stretch.low_ns <= until <= stretch.high_ns:
        until = stretch.low_ns  # of no step is it known that it is complete
    metrics = [_sampled(series, stretch, out) for series in trace.metrics]
    nics = [_rated(nic, stretch, out) for nic in trace.nics]
    identity, doubts = _identity(trace.identity, int(events.start_ns[0]) if len(events) else 0)
    return replace(
        trace,
        identity=identity,
        events=events,
        calls=calls,
        ranges=ranges,
        host=host,
        collectives=_as_their_events(communication, events) if in_turn else communication,
        metrics=[series for series in metrics if len(series.time_ns)],
        nics=[nic for nic in nics if len(nic.start_ns)],
        complete_until_ns=until,
        groups={name: ranks for name, ranks in trace.groups.items() if all(map(_is_rank, ranks))},
        notes=[*trace.notes, *(f"{count} {what}: left out" for what, count in out.items() if count), *in_turn, *doubts],
    )


def _stretch(trace: Trace) -> _Stretch:
    """All of time, or, where the trace's times lie too far apart, what is around most of its events."""
    parts = [part for part in (trace.events, trace.ranges, trace.calls, trace.host) if len(part)]
    columns = [column for part in parts for column in (part.start_ns, part.end_ns)]
    low, high = (min((int(c.min()) for c in columns), default=0), max((int(c.max()) for c in columns), default=0))
    everything = _Stretch(_FIRST_NS, _LAST_NS)
    if low >= _FIRST_NS and high <= _LAST_NS and high - low <= _LONGEST_NS:
        return everything
    starts = (part.start_ns[everything.holds(part.start_ns)] for part in parts)
    middle = next((int(np.partition(s, len(s) // 2)[len(s) // 2]) for s in starts if len(s)), 0)
    return _Stretch(max(_FIRST_NS, middle - _LONGEST_NS // 2), min(_LAST_NS, middle + _LONGEST_NS // 2))


def _good_events(events: Events, stretch: _Stretch, out: _LeftOut) -> Good:
    in_time = _has_time(events, stretch)
    placed = (events.device >= -1) & (events.device <= _LARGEST_DEVICE)
    sized = events.bytes <= _MOST_BYTES
    out[_TIMES] += int((~in_time).sum())
    out[_DEVICES] += int((in_time & ~placed).sum())
    out[_SIZES] += int((in_time & placed & ~sized).sum())
    return in_time & placed & sized


def _has_time(timed: Spans | NicSamples, stretch: _Stretch) -> Good:
    return (timed.start_ns >= stretch.low_ns) & (timed.end_ns <= stretch.high_ns) & (timed.start_ns <= timed.end_ns)


def _in_time(spans: AnySpans, stretch: _Stretch, out: _LeftOut) -> AnySpans:
    good = _has_time(spans, stretch)
    out[_TIMES] += int((~good).sum())
    return _kept(spans, good)


def _kept(spans: AnySpans, good: Good) -> AnySpans:
    return spans if good.all() else take(spans, np.flatnonzero(good))


def _closed(ranges: Ranges, events: Events, stretch: _Stretch) -> Ranges:
    """Ranges that never ended end with the recording, which is no later than what is reliable of it."""
    late = (ranges.is_open == 1) & (ranges.end_ns > stretch.high_ns)
    if not late.any():
        return ranges
    last = int(events.end_ns.max(initial=int(ranges.start_ns[late & stretch.holds(ranges.start_ns)].max(initial=0))))
    return replace(ranges, end_ns=np.where(late, np.maximum(ranges.start_ns, last), ranges.end_ns))


def _shallow(ranges: Ranges, out: _LeftOut) -> Ranges:
    """Without ranges inside of more others than a program's calls can nest; those of a thread come sorted by start."""
    if len(ranges) <= _MOST_OPEN or int(_open_at_start(ranges.start_ns, ranges.end_ns).max()) <= _MOST_OPEN:
        return ranges
    bounds = np.flatnonzero(np.diff(ranges.thread)) + 1
    threads = zip(np.split(ranges.start_ns, bounds), np.split(ranges.end_ns, bounds), strict=True)
    good = np.concatenate([_open_at_start(start, end) <= _MOST_OPEN for start, end in threads])
    good |= ranges.kind == RangeKind.START_END
    out[_DEPTH] += int((~good).sum())
    return _kept(ranges, good)


def _open_at_start(start_ns: I64, end_ns: I64) -> I64:
    """How many ranges were open when each began, by order of start."""
    return np.arange(1, len(start_ns) + 1) - np.searchsorted(np.sort(end_ns), np.sort(start_ns), side="right")


def _launched(events: Events, stretch: _Stretch) -> Events:
    """A launch at an unreliable time is unknown."""
    odd = ~stretch.holds(events.launch_ns) & (events.launch_ns != -1)
    return replace(events, launch_ns=np.where(odd, -1, events.launch_ns)) if odd.any() else events


def _in_turn(events: Events, names: Sequence[str]) -> tuple[Events, list[str]]:
    """The work of one stream runs in turn: what ends long after the next of it began has a wrong end. It becomes as
    long as others of its name are, or ends where the next begins. One launch, as of a graph, may do several things at
    once."""
    work = np.flatnonzero((events.activity <= Activity.MEMSET) & (events.stream >= 0))
    if not len(work):
        return events, []
    stream = distinct_columns([column[work] for column in (events.process, events.device, events.stream)])[1]
    order = np.argsort(stream, kind="stable")
    this, following = work[order[:-1]], work[order[1:]]
    correlation = events.correlation
    late = events.end_ns[this] - events.start_ns[following] > _OVERLAP_NS
    late &= stream[order[:-1]] == stream[order[1:]]
    late &= (correlation[this] <= 0) | (correlation[this] != correlation[following])
    rows, next_ns = this[late], events.start_ns[following[late]]
    if not len(rows):
        return events, []
    said = f"{len(rows)} of {len(work)} pieces of work still run where the next one of their stream begins"
    if len(rows) > _MOST_LATE * len(work):
        return events, [f"{said}: the file may hold several processes or devices that have the same numbers"]
    duration = events.end_ns - events.start_ns
    end_ns, alike = events.end_ns.copy(), np.setdiff1d(work, rows)
    for row, limit_ns in zip(rows.tolist(), next_ns.tolist(), strict=True):
        others = duration[alike[events.name[alike] == events.name[row]]]
        if len(others) < _FEWEST_ALIKE:
            end_ns[row] = limit_ns
        elif duration[row] > _UNLIKE * (usual := int(np.median(others))):
            end_ns[row] = min(limit_ns, int(events.start_ns[row]) + usual)
    longest = rows[np.argmax(duration[rows])]
    which = f"{names[events.name[longest]][:_MOST_NAME]}: {duration[longest] / 1e6:,.1f} ms"
    how = "they are taken as long as the median of their name, or until the next begins"
    return replace(events, end_ns=end_ns), [f"{said}, which cannot be (the longest, {which}); {how}"]


def _as_their_events(collectives: Collectives, events: Events) -> Collectives:
    """A collective that ends after its event, whose end was wrong, ends with it."""
    mine = collectives.event >= 0
    end_ns = collectives.end_ns.copy()
    end_ns[mine] = np.minimum(end_ns[mine], events.end_ns[collectives.event[mine]])
    return replace(collectives, end_ns=end_ns)


def _collectives(collectives: Collectives, good_events: Good, stretch: _Stretch) -> Collectives:
    """The collectives whose event is still there, pointing at its new place."""
    timely = _has_time(collectives, stretch)
    if good_events.all():
        return _kept(collectives, timely)
    kept = _kept(collectives, timely & ((collectives.event < 0) | good_events[collectives.event]))
    place = np.cumsum(good_events) - 1
    return replace(kept, event=np.where(kept.event < 0, -1, place[kept.event]))


def _sampled(series: MetricSeries, stretch: _Stretch, out: _LeftOut) -> MetricSeries:
    timely, countable = stretch.holds(series.time_ns), np.abs(series.value) <= _MOST_SUM  # NaN is not
    good = _counted(timely, countable, out)
    return replace(series, time_ns=series.time_ns[good], value=series.value[good]) if not good.all() else series


def _rated(nic: NicSamples, stretch: _Stretch, out: _LeftOut) -> NicSamples:
    timely = _has_time(nic, stretch) & (nic.end_ns > nic.start_ns)
    possible = (nic.bytes_per_s >= 0) & (nic.bytes_per_s <= MOST_BYTES_PER_S)  # NaN is not
    good = _counted(timely, possible, out)
    start, end = nic.start_ns[good], nic.end_ns[good]
    return replace(nic, start_ns=start, end_ns=end, bytes_per_s=nic.bytes_per_s[good])


def _counted(timely: Good, possible: Good, out: _LeftOut) -> Good:
    out[_SAMPLES] += int((~timely).sum())
    out[_VALUES] += int((timely & ~possible).sum())
    return timely & possible


def _sums_too_large(spans: Spans) -> bool:
    """Whether a sum of the durations has more than 64 bits, and so would be wrong."""
    if len(spans) <= _MOST_SUM // _LONGEST_NS:
        return False
    return float(spans.end_ns.sum(dtype=np.float64) - spans.start_ns.sum(dtype=np.float64)) > _MOST_SUM


def _is_rank(number: int) -> bool:
    return 0 <= number < MOST_RANKS


def _identity(identity: Identity, first_ns: int) -> tuple[Identity, list[str]]:
    """The identity without numbers that no job has, and sentences about these; `first_ns` is a time on the file's own
    clock."""
    rank, world, doubts = identity.rank, identity.world_size, list[str]()
    if rank is not None and not _is_rank(rank):
        doubts.append(f"the rank {_shown(rank)} in the file cannot be true and is not used")
        rank = None
    if world is not None and not max(rank or 0, 0) < world <= MOST_RANKS:
        whose = "" if rank is None else f" of rank {rank}"
        doubts.append(f"the world size {_shown(world)}{whose} in the file cannot be true and is not used")
        world = None
    epoch = identity.epoch_ns
    if epoch is not None and not _FIRST_NS <= epoch + first_ns < _LAST_UNIX_NS:
        doubts.append("the start of the file's clock cannot be true and is not used")
        epoch = None
    ranks = {pid: rank for pid, rank in identity.ranks.items() if _is_rank(rank)}
    return replace(identity, rank=rank, world_size=world, epoch_ns=epoch, ranks=ranks), doubts


def _shown(number: int) -> str:
    """A number of any size."""
    text = str(number)
    return text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}…"
