"""One clock for traces of several processes and nodes: what to add to each trace's times.

First the clocks that the traces themselves tell. Between nodes these differ by what their time service leaves (up to
milliseconds); a collective ends on all its ranks within microseconds, so its ends show by how much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.traces.trace import I64, Trace

# Collectives in which no rank can be done before all have come. A broadcast's root may leave early.
SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
MIN_MATCHES = 3


def offsets_ns(traces: Sequence[Trace], hosts: Sequence[str]) -> tuple[list[int], bool, list[str]]:
    """(what to add to each trace's times, whether the sum is unix time, what to tell). `hosts`: each trace's node."""
    if all(trace.identity.clock == "unix" or trace.identity.epoch_ns is not None for trace in traces):
        offsets = [trace.identity.epoch_ns or 0 for trace in traces]
        skews, notes = skews_ns(traces, hosts, offsets)
        return [offset - skews[host] for offset, host in zip(offsets, hosts, strict=True)], True, notes
    spans = [_span(trace) for trace in traces]
    if len(traces) < 2 or max(low for low, _ in spans) < min(high for _, high in spans):
        return [0] * len(traces), False, []
    note = "the traces do not say when their clocks started: each is drawn from its own first event"
    return [-low for low, _ in spans], False, [note]


def skews_ns(
    traces: Sequence[Trace], hosts: Sequence[str], offsets: Sequence[int]
) -> tuple[dict[str, int], list[str]]:
    """How far each node's clock is ahead of the first node's, by collectives of both; 0 where nothing shows it.

    The median difference of the ends of matched collectives, taken only when it stands out of their spread.
    """
    skews = dict.fromkeys(hosts, 0)
    notes = []
    ends = [_ends(trace, offset) for trace, offset in zip(traces, offsets, strict=True)]
    first = hosts[0] if hosts else ""
    for host in list(skews)[1:]:
        pairs = [(i, j) for i, a in enumerate(hosts) if a == first for j, b in enumerate(hosts) if b == host]
        found = [_differences(ends[i], ends[j]) for i, j in pairs]
        difference = np.concatenate(found) if found else np.zeros(0, np.int64)
        if len(difference) < MIN_MATCHES:
            continue
        low, middle, high = np.percentile(difference, (25, 50, 75))
        if abs(middle) > 2 * (high - low):
            skews[host] = round(middle)
            notes.append(
                f"the clock of {host} is {abs(middle) / 1e3:.1f} µs {'ahead of' if middle > 0 else 'behind'} that of "
                f"{first}, by the ends of {len(difference)} collectives: its events are shifted by that"
            )
    return skews, notes


def _ends(trace: Trace, offset_ns: int) -> dict[tuple[str, str], tuple[I64, I64]]:
    """(ends, message sizes) of the collectives of each (group, kind), in order."""
    told = trace.collectives
    keys = np.stack([told.group, told.kind], axis=1)
    found = {}
    for group, kind in np.unique(keys, axis=0).tolist():
        if group >= 0 and kind >= 0 and trace.names[kind] in SYNCHRONISING:
            here = np.flatnonzero((told.group == group) & (told.kind == kind))
            name = (trace.names[group], trace.names[kind])
            found[name] = (told.end_ns[here] + offset_ns, told.bytes[here])
    return found


def _differences(
    ours: dict[tuple[str, str], tuple[I64, I64]], theirs: dict[tuple[str, str], tuple[I64, I64]]
) -> I64:
    """Ends there minus ends here, of groups in which both saw the same messages in the same order."""
    matched = [
        theirs[name][0] - ours[name][0]
        for name in ours.keys() & theirs.keys()
        if np.array_equal(ours[name][1], theirs[name][1])
    ]
    return np.concatenate(matched) if matched else np.zeros(0, np.int64)


def _span(trace: Trace) -> tuple[int, int]:
    columns = [column for column in (trace.events, trace.ranges, trace.calls) if len(column.start_ns)]
    if not columns:
        return 0, 0
    return min(int(c.start_ns.min()) for c in columns), max(int(c.end_ns.max()) for c in columns)
