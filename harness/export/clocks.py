"""One clock for traces of several processes and nodes: what to add to each trace's times.

First the clocks that the traces themselves tell. Between nodes these differ by what their time service leaves (up to
milliseconds); a collective ends on all its ranks within microseconds, so its ends show by how much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.job.matching import Group
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
    """How far each node's clock is ahead of the first node's, by shared collectives; 0 where nothing shows it.

    The median difference of the ends of matched collectives, taken only when it stands out of their spread. A node
    that shares none with the first is compared with those that were.
    """
    ends: dict[str, list[Ends]] = {}
    for trace, host, offset in zip(traces, hosts, offsets, strict=True):
        ends.setdefault(host, []).append(_ends(trace, offset))
    first, *waiting = ends or {"": []}
    skews, notes = {first: 0}, []
    while found := _compared(ends, skews, waiting):
        for host, (skew, count) in found.items():
            waiting.remove(host)
            skews[host] = skew
            if skew:
                notes.append(_shifted(host, first, skew, count))
    if waiting:
        notes.append(
            f"the clocks of {', '.join(waiting[:4])}{' …' if waiting[4:] else ''} and {first} cannot be compared: no "
            "collectives of theirs match, so what they show at one time may lie apart"
        )
    return skews | dict.fromkeys(waiting, 0), notes


Ends = dict[Group, tuple[I64, I64]]  # ends and message sizes of collectives of one kind, in order


def _compared(
    ends: dict[str, list[Ends]], known: dict[str, int], waiting: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Of the waiting nodes that share collectives with known ones: how far ahead they are, by how many."""
    found = {}
    for host in waiting:
        difference = np.concatenate(
            [
                np.zeros(0, np.int64),
                *(
                    _differences(ours, theirs) + skew
                    for other, skew in known.items()
                    for ours in ends[other]
                    for theirs in ends[host]
                ),
            ]
        )
        if len(difference) >= MIN_MATCHES:
            low, middle, high = np.percentile(difference, (25, 50, 75))
            stands_out = abs(middle) > 2 * (high - low)
            found[host] = (round(middle) if stands_out else 0, len(difference))
    return found


def _shifted(host: str, first: str, skew: int, count: int) -> str:
    return (
        f"the clock of {host} is {abs(skew) / 1e3:.1f} µs {'ahead of' if skew > 0 else 'behind'} that of "
        f"{first}, by the ends of {count} collectives: its events are shifted by that"
    )


def _ends(trace: Trace, offset_ns: int) -> Ends:
    """Ends of the collectives of each group and kind. A name is not enough: parts of a world may share theirs."""
    told = trace.collectives
    keys = np.stack([told.group, told.kind], axis=1)
    found = {}
    for group, kind in np.unique(keys, axis=0).tolist():
        if group >= 0 and kind >= 0 and trace.names[kind] in SYNCHRONISING:
            here = np.flatnonzero((told.group == group) & (told.kind == kind))
            name, members = trace.names[group], trace.groups.get(trace.names[group])
            key = Group(name, tuple(members) if members else None, (trace.names[kind], None, None))
            found[key] = (told.end_ns[here] + offset_ns, told.bytes[here])
    return found


def _differences(ours: Ends, theirs: Ends) -> I64:
    """Ends there minus ends here, of groups in which both saw the same messages in the same order."""
    matched = [
        theirs[group][0] - ours[group][0]
        for group in ours.keys() & theirs.keys()
        if np.array_equal(ours[group][1], theirs[group][1])
    ]
    return np.concatenate(matched) if matched else np.zeros(0, np.int64)


def _span(trace: Trace) -> tuple[int, int]:
    columns = [column for column in (trace.events, trace.ranges, trace.calls) if len(column.start_ns)]
    if not columns:
        return 0, 0
    return min(int(c.start_ns.min()) for c in columns), max(int(c.end_ns.max()) for c in columns)
