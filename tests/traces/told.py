"""A trace in plain values, with names in place of their numbers, so that a table can say what a file becomes."""

from __future__ import annotations

from typing import Any

from harness.traces.trace import I32, I64, HostKind, Trace


def told(trace: Trace) -> dict[str, Any]:
    """Everything in a trace that a test may ask for. The names of the keys are short: most stand in long tables."""
    events, calls, ranges, sent, host = trace.events, trace.calls, trace.ranges, trace.collectives, trace.host
    who = trace.identity

    def named(column: I32 | I64) -> list[str | None]:
        return [trace.names[number] if number >= 0 else None for number in column.tolist()]

    def rows(*columns: Any) -> list[tuple[Any, ...]]:
        return list(zip(*(c if isinstance(c, list) else c.tolist() for c in columns), strict=True))

    return {
        "events": named(events.name),
        "spans": rows(named(events.name), events.start_ns, events.end_ns),
        "start": events.start_ns.tolist(),
        "length": (events.end_ns - events.start_ns).tolist(),
        "activity": events.activity.tolist(),
        "device": events.device.tolist(),
        "stream": events.stream.tolist(),
        "correlation": events.correlation.tolist(),
        "bytes": events.bytes.tolist(),
        "copies": rows(events.copy_kind, events.host_memory),
        "launch": events.launch_ns.tolist(),
        "launched on": events.launch_thread.tolist(),
        "process": events.process.tolist(),
        "calls": named(calls.name),
        "ranges": named(ranges.name),
        "range spans": rows(named(ranges.name), ranges.start_ns, ranges.end_ns),
        "range kinds": ranges.kind.tolist(),
        "domains": named(ranges.domain),
        "open": [name for name, is_open in rows(named(ranges.name), ranges.is_open) if is_open],
        "collectives": rows(named(sent.kind), sent.bytes, named(sent.dtype), named(sent.group), sent.group_size),
        "messages": rows(named(sent.kind), sent.bytes),
        "peers": sent.peer.tolist(),
        "of events": sent.event.tolist(),
        "host": rows(named(host.name), list(map(HostKind, host.kind)), host.thread, host.start_ns, host.end_ns),
        "host kinds": rows(named(host.name), list(map(HostKind, host.kind))),
        "host processes": sorted(set(host.process.tolist())),
        "counters": [(one.name, one.device, one.time_ns.tolist(), one.value.tolist()) for one in trace.metrics],
        "peak": trace.peak_memory_bytes,
        "dropped": trace.dropped_events,
        "groups": trace.groups,
        "notes": trace.notes,
        "who": (who.source, who.rank, who.world_size, who.host, who.pid, who.backend),
        "rank": who.rank,
        "world": (who.world_size, who.ranks),
        "clock": (who.clock, who.epoch_ns),
        "device names": who.device_names,
        "version": who.tool_version,
    }


def differing(trace: Trace, expected: dict[str, Any]) -> dict[str, Any]:
    """What of a trace is not as expected."""
    found = told(trace)
    return {key: found[key] for key, value in expected.items() if found[key] != value}
