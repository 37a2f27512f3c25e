"""A process's streams as nodes and arcs of its graph: each event's place on a stream that never idles, the arcs from
its launch on the host and from what it waits for on another stream, and the calls of the host that wait for the device.

Waiting is not recorded. A kernel that was launched long before and whose stream was free began right after something on
another stream ended: it waited for that. A call that returns right after something on the device ended waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching
from harness.analysis.process.collective_rows import row_events
from harness.analysis.process.first_use import LONG_CALL_NS
from harness.analysis.process.host_calls import blocks, only_waits
from harness.analysis.process.idle import COMPUTE, MEMORY, NOT_WORK
from harness.analysis.process.kinds import LAYOUT
from harness.analysis.process.phases import Phase, phases
from harness.analysis.process.prepared import MeasuredProcess
from harness.replay.graph.builder import Builder, HostThread, from_table
from harness.replay.graph.graph import DEVICE_COMPUTES, TimeCategory, slot
from harness.replay.graph.host import feeding_calls
from harness.traces.trace import I64

IDLE_NS = 3_000  # a stream that is free for less has only its usual gap
_FURTHER = 8  # events back
SOON_NS = 15_000  # after the end of what it waited for
SOON_SHARE = 0.02  # the same, of a long wait
SOON_AT_MOST_NS = 100_000
RETURN_NS = 30_000  # a call returns this soon after
BLOCKED_NS = 20_000  # a shorter call waited for nothing
USUAL_GAP_NS = 1_000  # between kernels that are queued on a stream, if too few are to measure it
_ENOUGH = 20
LATENCY_SHARE = 0.1  # the percentile of launch latencies that is the latency itself; what is more is waiting
_CATEGORIES = (*DEVICE_COMPUTES, TimeCategory.DEVICE_COPY, TimeCategory.DEVICE_GAP, TimeCategory.DEVICE_EVALUATION)
_PRODUCTS = ("gemm", "attention")
_BY_PRECISION: dict[str | None, TimeCategory] = {"fp32": TimeCategory.DEVICE_FP32, "tf32": TimeCategory.DEVICE_TF32}
_STAGED = 0.9  # of a copy's time that lies in the call that launches it, from which the call waited for it


@dataclass(frozen=True)
class Streams:
    """n events by (stream, start). `row`: in the process's events. `previous_ns`: when the stream was free, -1 for the
    first of a stream. `index`: a number per stream of a device. `message`: it is a row of collectives."""

    row: NDArray[np.intp]
    start_ns: I64
    end_ns: I64
    launch_ns: I64
    index: I64
    previous_ns: I64
    message: NDArray[np.bool_]


def streams_of(m: MeasuredProcess, window: tuple[int, int], message_events: I64) -> Streams:
    """The work on devices that begins in a window. message_events: rows of events that carry collectives."""
    events = m.view.events
    inside = (events.start_ns >= window[0]) & (events.start_ns < window[1]) & (m.kinds.event_class != NOT_WORK)
    rows_ = np.flatnonzero(inside)
    keys = events.end_ns[rows_], events.start_ns[rows_], events.stream[rows_], events.device[rows_]
    rows_ = rows_[np.lexsort(keys)]
    device, stream = events.device[rows_], events.stream[rows_]
    changes = np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1]))[: len(rows_)]
    index = np.cumsum(changes) - 1
    start, end = events.start_ns[rows_], np.minimum(events.end_ns[rows_], _staged_ns(m, rows_))
    reach = _reach(end, index)
    previous = np.where(changes, -1, np.concatenate([[-1], reach[:-1]])) if len(rows_) else start
    message = np.isin(rows_, message_events)
    return Streams(rows_, start, np.maximum(end, reach), events.launch_ns[rows_], index, previous, message)


def _staged_ns(m: MeasuredProcess, rows: NDArray[np.intp]) -> I64:
    """When the host could go on after each event, if that was shortly before its end; else no limit.

    The call that copies pageable memory returns when the last part is in the driver's buffer, some microseconds before
    the copy's end: the host waited for this copy all the same.
    """
    events, calls = m.view.events, m.view.calls
    limit = np.full(len(rows), np.iinfo(np.int64).max)
    copies = np.flatnonzero((m.kinds.event_class[rows] == MEMORY) & (events.launch_ns[rows] >= 0))
    if not len(copies) or not len(calls.start_ns):
        return limit
    by_start = np.argsort(calls.start_ns, kind="stable")
    start, launch = calls.start_ns[by_start], events.launch_ns[rows[copies]]
    at = np.minimum(np.searchsorted(start, launch), len(start) - 1)
    returned = calls.end_ns[by_start[at]]
    begin, end = events.start_ns[rows[copies]], events.end_ns[rows[copies]]
    waited = (start[at] == launch) & (returned - launch >= BLOCKED_NS) & (returned < end)
    waited &= returned - begin >= _STAGED * (end - begin)
    limit[copies[waited]] = returned[waited]
    return limit


def _reach(end: I64, index: I64) -> I64:
    """The latest end so far on each event's own stream."""
    streams = np.split(end, np.flatnonzero(np.diff(index)) + 1)
    return np.concatenate([np.maximum.accumulate(own) for own in streams])


def most_computed(m: MeasuredProcess, streams: Streams) -> I64:
    """The number of the stream with most computation, as an array of length one."""
    computes = m.kinds.event_class[streams.row] == COMPUTE
    work = np.where(computes, streams.end_ns - streams.start_ns, 0)
    return np.array([np.argmax(np.bincount(streams.index, weights=work))])


class HostWaits(NamedTuple):
    """n calls that waited for the end of `source`, a row of `Streams`: when they began and returned, and from when on
    they only waited; a call that found it done did not. synchronises: it does nothing else than wait."""

    source: I64
    began_ns: I64
    since_ns: I64
    returned_ns: I64
    synchronises: NDArray[np.bool_]


def find_stream_dependencies(streams: Streams) -> tuple[I64, I64]:
    """Source and target, rows of `streams`: each target cannot begin before its source on another stream has ended."""
    free = np.maximum(streams.launch_ns, streams.previous_ns)
    waited = np.flatnonzero((streams.start_ns - free > IDLE_NS) & (streams.launch_ns >= 0))
    source = _last_end_elsewhere(streams, waited)
    found = source >= 0
    waited, source = waited[found], source[found]
    long = np.minimum(SOON_SHARE * (streams.start_ns - free)[waited], SOON_AT_MOST_NS)
    soon = streams.start_ns[waited] - streams.end_ns[source] <= np.maximum(SOON_NS, long)
    pairs = [(source[soon], waited[soon]), _before_messages(streams)]
    source, target = (np.concatenate(c) for c in zip(*pairs, strict=True))
    _, kept = np.unique(target, return_index=True)
    return source[kept], target[kept]


def _last_end_elsewhere(streams: Streams, rows: NDArray[np.intp]) -> I64:
    """For each row, of the events on other streams the one that ended last before the row began; -1: none is near."""
    order = np.argsort(streams.end_ns, kind="stable")
    ends = streams.end_ns[order]
    at = np.searchsorted(ends, streams.start_ns[rows], side="right") - 1
    found = np.full(len(rows), -1, np.int64)
    for _ in range(_FURTHER):  # a stream's own events may lie between
        usable = (at >= 0) & (found < 0)
        other = usable & (streams.index[order[np.maximum(at, 0)]] != streams.index[rows])
        found[other] = order[at[other]]
        at = at - 1
    return found


def _before_messages(streams: Streams) -> tuple[I64, I64]:
    """A collective waits for what was launched before it on the stream with most work, which made its data."""
    rows, none = np.flatnonzero(streams.message & (streams.launch_ns >= 0)), np.empty(0, np.int64)
    if not len(rows):
        return none, none
    busiest = np.argmax(np.bincount(streams.index[~streams.message], minlength=int(streams.index.max()) + 1))
    main = np.flatnonzero((streams.index == busiest) & (streams.launch_ns >= 0))
    rows = rows[streams.index[rows] != busiest]
    if not len(main) or not len(rows):
        return none, none
    launches = np.maximum.accumulate(streams.launch_ns[main])
    before = np.searchsorted(launches, streams.launch_ns[rows]) - 1
    source = main[np.maximum(before, 0)]
    holds = (before >= 0) & (streams.end_ns[source] <= streams.start_ns[rows])
    return source[holds], rows[holds]


def host_waits(m: MeasuredProcess, window: tuple[int, int], streams: Streams) -> HostWaits:
    """Calls that waited for the device. A call that always waits and found the device done waits for the last event
    launched before it. A call that launches waits for its own stream only, whose queue is full, or for the copy that it
    launches; for a kernel of its own no call waits."""
    calls = m.view.calls
    rows = feeding_calls(m)
    rows = rows[(calls.start_ns[rows] >= window[0]) & (calls.end_ns[rows] <= window[1])]
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    order = np.argsort(streams.end_ns, kind="stable")
    ends = streams.end_ns[order]
    at = np.searchsorted(ends, end, side="right") - 1
    by_launch = np.argsort(streams.launch_ns, kind="stable")
    before = np.searchsorted(streams.launch_ns[by_launch], start, side="right") - 1
    launched = by_launch[np.maximum(before, 0)]
    own = np.where((before >= 0) & (streams.launch_ns[launched] == start), streams.index[launched], -1)
    for _ in range(_FURTHER):  # other streams' events may have ended after its own
        other = (at >= 0) & (own >= 0) & (streams.index[order[np.maximum(at, 0)]] != own)
        at = at - other
    last = order[np.maximum(at, 0)]
    seen = (at >= 0) & ((own < 0) | (streams.index[last] == own))
    seen &= (end - start >= BLOCKED_NS) & (streams.end_ns[last] > start)
    seen &= (end - streams.end_ns[last] <= RETURN_NS) & (streams.launch_ns[last] <= end)
    # a kernel may begin and end before the call that loads and launches it returns: that call waits for no device
    seen &= (own < 0) | (streams.launch_ns[last] != start) | (m.kinds.event_class[streams.row[last]] == MEMORY)
    always = matching(calls.name[rows], m.view.names, blocks) & ~seen
    ends = streams.end_ns[by_launch]  # of those launched until then the one which ends last
    latest = np.where(ends == np.maximum.accumulate(ends), np.arange(len(ends)), 0)
    until = by_launch[np.maximum.accumulate(latest)][np.maximum(before, 0)]
    launched = np.where(streams.end_ns[until] <= end, until, launched)
    always &= (before >= 0) & (streams.launch_ns[launched] >= 0) & (streams.end_ns[launched] <= end)
    kept = seen | always
    source = np.where(seen, last, launched)[kept]
    waited = seen | (streams.end_ns[launched] > start)
    synchronises = matching(calls.name[rows], m.view.names, only_waits)[kept]
    return HostWaits(source, start[kept], np.where(waited, start, end)[kept], end[kept], synchronises)


class DeviceNodes(NamedTuple):
    """Nodes, -1 where there is none: where each row of the process's collectives arrives and where it ends; the last
    ends of the streams, and of the one with most computation; and the starts and ends of the wanted events."""

    arrive: I64
    done: I64
    last: I64
    last_computed: I64
    starts: I64
    ends: I64


def on_gpu(
    m: MeasuredProcess, window: tuple[int, int], builder: Builder, thread: HostThread, event_rows: tuple[I64, I64]
) -> DeviceNodes:
    """Adds the streams of the window. event_rows: of events whose starts, and whose ends, must be nodes."""
    event = row_events(m.view, m.kinds)
    streams = streams_of(m, window, event)
    count = len(streams.row)
    place = np.full(len(m.view.events) + 1, -1, np.int64)
    place[streams.row] = np.arange(count)
    if not count:
        return DeviceNodes(*(np.full(len(rows_), -1) for rows_ in (event, event, (), (), *event_rows)))
    (source, target), waits = find_stream_dependencies(streams), host_waits(m, window, streams)
    last = np.flatnonzero(np.diff(streams.index, append=-1))
    first_of, last_of = (own[own >= 0] for own in (place[rows_] for rows_ in event_rows))
    start_node, end_node = np.full((2, count), -1, np.int64)
    begins = streams.message | np.isin(np.arange(count), np.concatenate([target, first_of]))
    ends = streams.message | np.isin(np.arange(count), np.concatenate([last, source, waits.source, last_of]))
    start_node[begins] = builder.add_nodes(streams.start_ns[begins])
    end_node[ends] = builder.add_nodes(streams.end_ns[ends])
    _add_host_waits(builder, thread, waits, end_node, streams)
    arcs = builder.add_arcs(end_node[source], start_node[target])
    gap = streams.start_ns[target] - streams.end_ns[source]
    free = np.maximum(streams.launch_ns, streams.previous_ns)  # as far as launch and own stream are concerned
    builder.give_slot(arcs, slot(TimeCategory.DEVICE_GAP), np.where(gap <= (streams.start_ns - free)[target], gap, 0))
    _Chain.of(m, streams, (source, target), waits).add_arcs(builder, thread, start_node, end_node)
    at_start, at_end = (np.append(nodes, -1) for nodes in (start_node, end_node))
    return DeviceNodes(
        at_start[place[event]],
        at_end[place[event]],
        end_node[last],
        end_node[last[most_computed(m, streams)]],
        at_start[place[event_rows[0]]],
        at_end[place[event_rows[1]]],
    )


def _add_host_waits(builder: Builder, thread: HostThread, waits: HostWaits, end_node: I64, streams: Streams) -> None:
    """The host goes on when what it waited for has ended, after the rest of the call's own work: that is an activity of
    the host, as is the work of a call that found the device done."""
    nodes = thread.mark(builder, waits.returned_ns, waits.since_ns)
    arcs = builder.add_arcs(end_node[waits.source], nodes)
    since = np.maximum(streams.end_ns[waits.source], waits.began_ns)
    since = np.where(waits.since_ns < waits.returned_ns, streams.end_ns[waits.source], since)
    builder.give_slot(arcs, slot(TimeCategory.WAIT_TAIL), waits.returned_ns - since)
    builder.give_activities(thread.activities.between(since, waits.returned_ns, arcs))
    builder.waits.append(arcs)
    builder.syncs.append(arcs[waits.synchronises])


@dataclass(frozen=True)
class _Chain:
    """Each event's place on a stream that never idles. table: (n, categories), what lies between the first event's
    start and its own. rows: (n, categories), of itself. latency: from its launch to its start at the earliest."""

    streams: Streams
    table: NDArray[np.int64]
    rows: NDArray[np.int64]
    latency: I64

    @staticmethod
    def of(m: MeasuredProcess, streams: Streams, dependencies: tuple[I64, I64], waits: HostWaits) -> _Chain:
        launched = streams.launch_ns >= 0
        delay = streams.start_ns - streams.launch_ns
        waited = streams.start_ns - streams.previous_ns
        latency = _low(delay[launched & (streams.launch_ns >= streams.previous_ns)])
        queued = waited[(streams.previous_ns >= 0) & (streams.launch_ns < streams.previous_ns)]
        between = _low(queued) if len(queued) >= _ENOUGH else USUAL_GAP_NS
        calls_ns = _long_calls(m, streams.launch_ns, waits)
        latency_of = np.where(launched, np.minimum(latency + calls_ns, delay), 0)
        between_of = np.where(streams.previous_ns < 0, 0, np.minimum(between, waited))
        first = streams.previous_ns < 0
        by_launch = np.where(launched, streams.launch_ns + latency_of, -1)
        could = np.maximum(by_launch, np.where(first, -1, streams.previous_ns + between_of))
        source, target = dependencies
        could[target] = np.maximum(could[target], streams.end_ns[source])
        rest = np.where(could >= 0, streams.start_ns - could, 0)
        # what a call held up itself, as a copy of pageable memory, lies between its launch and its work
        held = launched & (streams.launch_ns + latency_of >= streams.previous_ns + between_of)
        held[target] = False
        gap = np.where(first, 0, between_of + np.where(held, 0, rest))
        own = np.zeros((len(gap), len(_CATEGORIES)), np.int64)
        own[np.arange(len(gap)), _sort_of(m)[streams.row]] = streams.end_ns - streams.start_ns
        before = np.zeros_like(own)
        before[:, _CATEGORIES.index(TimeCategory.DEVICE_GAP)] = gap
        steps = before.copy()
        steps[1:] += own[:-1]
        return _Chain(streams, np.cumsum(steps, axis=0), own, latency_of + rest)

    def add_arcs(self, builder: Builder, thread: HostThread, start_node: I64, end_node: I64) -> None:
        """Arcs from each node of a stream to the next, and from the host's nodes over the launches between them."""
        n = len(start_node)
        position = np.concatenate([2 * np.flatnonzero(start_node >= 0), 2 * np.flatnonzero(end_node >= 0) + 1])
        position.sort()
        event = position // 2
        is_end = position % 2 == 1
        node = np.where(is_end, end_node[event], start_node[event])
        place = self.table[event] + np.where(is_end[:, None], self.rows[event], 0)
        of_message = (event[1:] == event[:-1]) & ~is_end[:-1] & is_end[1:] & self.streams.message[event[1:]]
        one_stream = self.streams.index[event[1:]] == self.streams.index[event[:-1]]
        same = np.flatnonzero(one_stream & ~of_message)  # the job joins start and end of a message
        arcs = builder.add_arcs(node[same], node[same + 1])
        builder.amounts.append(from_table(arcs, [slot(s) for s in _CATEGORIES], place[same + 1] - place[same]))
        # the node that each launch leads to: the first at or after its event's start
        to = np.searchsorted(position, 2 * np.arange(n))
        launched = np.flatnonzero((self.streams.launch_ns >= 0) & (to < len(position)))
        launched = launched[self.streams.index[launched] == self.streams.index[event[to[launched]]]]
        self._launch_arcs(builder, thread, launched, to[launched], (node, place))

    def _launch_arcs(
        self, builder: Builder, thread: HostThread, launched: I64, to: I64, stream_nodes: tuple[I64, I64]
    ) -> None:
        """Arcs to the nodes at `to`. stream_nodes: all nodes of streams, and their places in the chain (n,
        categories)."""
        node, place = stream_nodes
        hosts, times, _ = thread.ordered()
        if not len(hosts) or not len(launched):
            return
        since = np.searchsorted(times, self.streams.launch_ns[launched], side="right") - 1
        launched, to, since = launched[since >= 0], to[since >= 0], since[since >= 0]
        if not len(launched):
            return
        tail = place[to] - self.table[launched]
        length = self.streams.launch_ns[launched] - times[since] + self.latency[launched] + tail.sum(axis=1)
        chosen = _representatives(to * len(times) + since, length, self.streams.launch_ns[launched])
        launched, to, since, tail = launched[chosen], to[chosen], since[chosen], tail[chosen]
        arcs = builder.add_arcs(hosts[since], node[to])
        builder.repeated.append(arcs)
        launch = self.streams.launch_ns[launched]
        thread.give(builder, times[since], launch, arcs)
        # a call that holds its own work up, as a copy of pageable memory does
        builder.give_activities(thread.activities.between(launch, launch + self.latency[launched], arcs))
        tail = tail.copy()
        tail[:, _CATEGORIES.index(TimeCategory.DEVICE_GAP)] += self.latency[launched]
        builder.amounts.append(from_table(arcs, [slot(s) for s in _CATEGORIES], tail))


def _representatives(group: I64, length: I64, launch: I64) -> NDArray[np.intp]:
    """Of each group of launches the longest way, and those of the first and last launch: other lengths make others of
    them the longest."""
    chosen = []
    for key in (length, launch, -launch):
        order = np.lexsort((key, group))
        last = np.append(group[order][1:] != group[order][:-1], True)
        chosen.append(order[last])
    return np.unique(np.concatenate(chosen))


def _long_calls(m: MeasuredProcess, launch_ns: I64, waits: HostWaits) -> I64:
    """How long the call behind each launch took, where that is long and it did not wait for the device: its work cannot
    begin before it returns. 0 for all others."""
    calls = m.view.calls
    long = calls.end_ns - calls.start_ns >= LONG_CALL_NS
    rows = np.flatnonzero(long & ~np.isin(calls.end_ns, waits.returned_ns))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    if not len(rows):
        return np.zeros(len(launch_ns), np.int64)
    at = np.minimum(np.searchsorted(calls.start_ns[rows], launch_ns), len(rows) - 1)
    found = calls.start_ns[rows][at] == launch_ns
    return np.where(found, (calls.end_ns - calls.start_ns)[rows][at], 0)


def _low(values: I64) -> int:
    return max(int(np.quantile(values, LATENCY_SHARE)), 0) if len(values) else 0


def categories_of(m: MeasuredProcess) -> I64:
    """The category of each event of a GPU trace, as a number; that of communication means nothing."""
    return np.array(_CATEGORIES, np.int64)[_sort_of(m)]


def _category_of(kind: str, precision: str | None) -> TimeCategory:
    if kind in _PRODUCTS:
        return _BY_PRECISION.get(precision, TimeCategory.DEVICE_PRODUCT)
    return TimeCategory.DEVICE_LAYOUT if kind == LAYOUT else TimeCategory.DEVICE_WORK


def _sort_of(m: MeasuredProcess) -> NDArray[np.intp]:
    of_kind = [_category_of(kind, precision) for kind, precision in m.kinds.labels]
    table = np.array([_CATEGORIES.index(category) for category in of_kind] or [0])
    copies = m.kinds.event_class == MEMORY
    found = np.where(copies, _CATEGORIES.index(TimeCategory.DEVICE_COPY), table[m.kinds.code])
    phase = np.append(phases(m.view.ranges, m.view.names, m.nesting), Phase.OTHER)[m.owner]
    return np.where(phase == Phase.EVALUATION, _CATEGORIES.index(TimeCategory.DEVICE_EVALUATION), found)
