"""A Kineto file to a Trace: gathers its records in one pass, then builds the columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.traces.columns import constant, sorted_calls, sorted_ranges, sorting_order, take
from harness.traces.kineto.collectives import kernel_messages, span_messages
from harness.traces.kineto.cpu import SPAN_PREFIX, host_events
from harness.traces.kineto.fill import gathered_from, names_no_gpu
from harness.traces.kineto.gather import Gathered
from harness.traces.kineto.gpu import device_events
from harness.traces.kineto.identity import About, identity
from harness.traces.kineto.split import Records
from harness.traces.messages import Message, collectives
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import Calls, Collectives, Events, RangeKind, Ranges, Trace

_HOST_STANDS_IN = "the file names GPUs but holds no work of theirs, so the host's operators are its events"
_NOTHING = "the trace holds no work: no kernels, no operators and no ranges were recorded"
_DAMAGED_HEADER = "the text around the events is damaged, so rank, devices or clock may be missing"


def read_kineto(path: Path, progress: OnProgress = silent, workers: int = 1) -> Trace:
    """Read one rank's trace. Raises TraceError where there is nothing to read.

    A GPU's work becomes the events; without a GPU the operators do, and gloo's spans are the communication.
    """
    no_gpu = names_no_gpu(path)
    gathered, records, said = gathered_from(path, progress, workers, operators=no_gpu)
    host_only = len(gathered.device) == 0
    if host_only and not no_gpu and not records.truncated:
        gathered, _, said = gathered_from(path, progress, workers, operators=True)
    calls = _calls(gathered)
    complete_until_ns = _complete_until_ns(gathered, host_only) if records.truncated else None
    if host_only:
        events, communication = _host_parts(gathered, said)
    else:
        events, communication = _device_parts(gathered, calls, said)
    ranges = _ranges(gathered)
    notes = _notes(records, said, gathered, host_only)
    if len(events) == 0 and len(ranges) == 0:
        notes.append(_NOTHING)
    first_ns = int(events.start_ns.min()) if len(events) else 0
    return Trace(
        identity=identity(path, said, gathered.pid, first_ns),
        names=gathered.names.texts,
        events=events,
        calls=calls,
        ranges=ranges,
        collectives=communication,
        peak_memory_bytes={(gathered.pid, d): size for d, size in _peak_memory(gathered, host_only).items()},
        complete_until_ns=complete_until_ns,
        notes=notes,
        groups=said.groups(),
    )


def _complete_until_ns(gathered: Gathered, host_only: bool) -> int:
    """Ranges come before a GPU's work in a file, so some in a file that was cut off are there without theirs."""
    return (gathered.operators if host_only else gathered.device).last("start")


def _notes(records: Records, said: About, gathered: Gathered, host_only: bool) -> list[str]:
    """What was salvaged or is missing."""
    notes = []
    if records.truncated:
        notes.append(f"{records.truncated}; what came before was read")
    elif not said.whole:
        notes.append(_DAMAGED_HEADER)
    elif host_only and said.devices:
        notes.append(_HOST_STANDS_IN)
    processes = max(map(len, gathered.pids.values()), default=0)
    if processes > 1:
        notes.append(
            f"the file holds {processes} processes, which are read as one: steps and launches may be another's than "
            "the work's; give a file for each process"
        )
    if gathered.timeless:
        notes.append(f"{gathered.timeless} records without a valid duration were left out")
    return notes


def _calls(gathered: Gathered) -> Calls:
    table = gathered.calls
    n = len(table)
    return sorted_calls(
        Calls(
            start_ns=table.column("start"),
            end_ns=table.column("end"),
            name=table.column("name").astype(np.int32),
            thread=table.column("thread"),
            correlation=table.column("correlation"),
            process=constant(gathered.pid, n),
        )
    )


def _ranges(gathered: Gathered) -> Ranges:
    table, texts = gathered.ranges, gathered.names.texts
    name = table.column("name").astype(np.int32)
    n = len(name)
    step = np.fromiter((texts[i].startswith("ProfilerStep#") for i in name.tolist()), bool, n)
    message = np.fromiter((texts[i].startswith(SPAN_PREFIX) for i in name.tolist()), bool, n)
    ranges = Ranges(
        start_ns=table.column("start"),
        end_ns=table.column("end"),
        name=name,
        thread=table.column("thread"),
        kind=np.where(step, RangeKind.STEP, RangeKind.ANNOTATION).astype(np.uint8),
        process=constant(gathered.pid, n),
        domain=constant(-1, n, np.int32),
        is_open=constant(0, n, np.uint8),
    )
    return sorted_ranges(take(ranges, np.flatnonzero(~message)))


def _device_parts(gathered: Gathered, calls: Calls, said: About) -> tuple[Events, Collectives]:
    events = device_events(gathered, calls)
    return _in_order(events, kernel_messages(gathered, events), gathered, said)


def _host_parts(gathered: Gathered, said: About) -> tuple[Events, Collectives]:
    spans, messages, issued = span_messages(gathered)
    events = host_events(gathered, spans, issued)
    first = len(events) - len(spans)
    return _in_order(events, {first + row: message for row, message in messages.items()}, gathered, said)


def _in_order(
    events: Events, messages: dict[int, Message], gathered: Gathered, said: About
) -> tuple[Events, Collectives]:
    """Events in the contract's order, and the collectives that point at them; `messages` are by unsorted row."""
    rows = np.array(list(messages), np.int64)
    order = sorting_order(events.start_ns, events.device)
    if order is not None:
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        events, rows = take(events, order), position[rows]
    where = np.arange(len(messages))
    told = list(messages.values())
    return events, collectives(rows, told, where, events, names=gathered.names, groups=said.groups())


def _peak_memory(gathered: Gathered, host_only: bool) -> dict[int, int]:
    peak = gathered.peak_memory_bytes
    if host_only:
        return {0: peak[-1]} if -1 in peak else {}
    return {device: size for device, size in peak.items() if device >= 0}
