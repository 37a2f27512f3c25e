"""A Kineto file to a Trace: gathers its records in one pass, then builds the columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from harness.traces.columns import constant, sorted_calls, sorted_spans, sorting_order, take
from harness.traces.errors import TraceError
from harness.traces.kineto.collectives import SPAN_PREFIX, device_events, host_events, kernel_messages, span_messages
from harness.traces.kineto.fill import About, gathered_from, identity, names_no_gpu
from harness.traces.kineto.framing import Records
from harness.traces.kineto.gather import Gathered
from harness.traces.kineto.merged import MergedRanks, merged_ranks
from harness.traces.nccl_calls import Message, collectives
from harness.traces.progress import OnProgress
from harness.traces.trace import (
    SHORTEST_HOST_NS,
    Calls,
    Collectives,
    Events,
    HostKind,
    HostSpans,
    Identity,
    RangeKind,
    Ranges,
    Trace,
)
from harness.traces.vocabulary import launches_work

_Rows = TypeVar("_Rows", Calls, Ranges, HostSpans)
_HOST_STANDS_IN = (
    "the file names GPUs and holds neither work of a GPU nor a launch, so the operators of the host are its events"
)
_NOTHING = "the trace holds no work: no kernels, no operators and no ranges were recorded"
_DAMAGED_HEADER = "the text around the events is damaged, so rank, devices or clock may be missing"


def read_kineto(path: Path, workers: int, progress: OnProgress) -> Trace:
    """Read one rank's trace. Raises TraceError: the file cannot be read as a trace.

    A GPU's work becomes the events; without a GPU the operators are the events, and gloo's spans the communication.
    """
    no_gpu = names_no_gpu(path)
    gathered, records, about = gathered_from(path, progress, workers, operators=no_gpu)
    host_only = len(gathered.device) == 0
    if host_only and not no_gpu and not records.truncated:
        gathered, _, about = gathered_from(path, progress, workers, operators=True)
    calls = sorted_calls(Calls(**gathered.calls.joined()))
    host_only = host_only and not _launches(calls, gathered.names.texts)
    # A file holds the ranges before the GPU's work, so a cut file may have ranges without their work.
    last_ns = (gathered.operators if host_only else gathered.device).last("start_ns")
    work = gathered.device.joined()
    merged = None if host_only else merged_ranks(gathered, work, calls)
    calls = _of_process(calls, gathered, merged)
    if host_only:
        events, communication = _host_parts(gathered, about)
    else:
        process = constant(gathered.pid, len(work["name"])) if merged is None else merged.of(work["device"])
        events = device_events(gathered, work, process, calls)
        events, communication = _in_order(events, kernel_messages(gathered, events), gathered, about)
    ranges = _of_process(_ranges(gathered), gathered, merged)
    notes = list(_notes(records, about, gathered, host_only, merged))
    if len(events) == 0 and len(ranges) == 0:
        if records.truncated:
            raise TraceError(path, f"{records.truncated}, before any work")
        notes.append(_NOTHING)
    first_ns = int(events.start_ns.min()) if len(events) else 0
    return Trace(
        identity=_identity(identity(path, about, gathered.pid, first_ns, _accelerators(gathered, events)), merged),
        names=gathered.names.texts,
        events=events,
        calls=calls,
        ranges=ranges,
        collectives=communication,
        host=_of_process(_host(gathered, host_only), gathered, merged),
        peak_memory_bytes={
            (gathered.pid if merged is None else merged.process.get(d, -1), d): size
            for d, size in _peak_memory(gathered, host_only).items()
        },
        complete_until_ns=last_ns if records.truncated else None,
        notes=notes,
        groups=about.groups(),
    )


def _launches(calls: Calls, names: list[str]) -> bool:
    """Whether any call puts work on a device: the host never stands in for a device that was used."""
    return any(launches_work(names[name]) for name in np.unique(calls.name).tolist())


def _accelerators(gathered: Gathered, events: Events) -> dict[int, str]:
    """The names of devices that are no GPUs, by number."""
    kind = gathered.accelerator
    return dict.fromkeys(np.unique(events.device).tolist(), kind) if kind else {}


def _of_process(rows: _Rows, gathered: Gathered, merged: MergedRanks | None) -> _Rows:
    """Rows of the host with their own processes, if these are ranks; else all are one process."""
    return rows if merged is not None else replace(rows, process=constant(gathered.pid, len(rows.process)))


def _identity(found: Identity, merged: MergedRanks | None) -> Identity:
    """Of a merged file no rank is the file's; a header that it has is one rank's."""
    return found if merged is None else replace(found, rank=None, ranks=merged.ranks)


def _notes(
    records: Records, about: About, gathered: Gathered, host_only: bool, merged: MergedRanks | None
) -> Iterator[str]:
    """What was salvaged or is missing."""
    if records.truncated:
        yield f"{records.truncated}; the events before that were read"
    elif not about.whole:
        yield _DAMAGED_HEADER
    elif host_only and about.devices:
        yield _HOST_STANDS_IN
    numbers = gathered.accelerator_numbers  # a runtime's calls may have them
    processes = max((len(pids - numbers) for pids in gathered.pids.values()), default=0)
    if merged is not None and merged.note:
        yield merged.note
    if processes > 1 and merged is None:
        yield (
            f"the file holds {processes} processes, which are read as one: steps and launches may belong to another "
            "process than the work; give a file for each process"
        )
    if gathered.timeless:
        yield f"{gathered.timeless} records without a valid duration were left out"
    if gathered.unreadable:
        yield f"{gathered.unreadable} records that cannot be read were left out (the first: {gathered.why_unreadable})"


def _ranges(gathered: Gathered) -> Ranges:
    columns = gathered.ranges.joined()
    texts = [gathered.names.texts[name] for name in columns["name"].tolist()]
    n = len(texts)
    step = np.array([text.startswith("ProfilerStep#") for text in texts], bool)
    message = np.array([text.startswith(SPAN_PREFIX) for text in texts], bool)
    ranges = Ranges(
        **columns,
        kind=np.where(step, RangeKind.STEP, RangeKind.ANNOTATION).astype(np.uint8),
        domain=constant(-1, n, np.int32),
        is_open=constant(0, n, np.uint8),
    )
    return sorted_spans(take(ranges, np.flatnonzero(~message)))


def _host(gathered: Gathered, host_only: bool) -> HostSpans:
    """The long spans; operators that were gathered whole are among them where they are not the events."""
    columns = gathered.host.joined()
    if not host_only:
        operators = gathered.operators.joined()
        long = operators["end_ns"] - operators["start_ns"] >= SHORTEST_HOST_NS
        operators["kind"] = constant(HostKind.OPERATOR, len(long), np.uint8)
        columns = {name: np.concatenate([column, operators[name][long]]) for name, column in columns.items()}
    return sorted_spans(HostSpans(**columns))


def _host_parts(gathered: Gathered, about: About) -> tuple[Events, Collectives]:
    spans, messages, issued = span_messages(gathered)
    events = host_events(gathered, spans, issued)
    first = len(events) - len(spans)
    return _in_order(events, {first + row: message for row, message in messages.items()}, gathered, about)


def _in_order(
    events: Events, messages: dict[int, Message], gathered: Gathered, about: About
) -> tuple[Events, Collectives]:
    """Events in the contract's order, and the collectives that point at them; `messages` are by unsorted row."""
    rows = np.array(list(messages), np.int64)
    order = sorting_order(events.start_ns, events.device)
    if order is not None:
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        events, rows = take(events, order), position[rows]
    which, found = np.arange(len(messages)), list(messages.values())
    return events, collectives(rows, found, which, events, names=gathered.names, groups=about.groups())


def _peak_memory(gathered: Gathered, host_only: bool) -> dict[int, int]:
    peak = gathered.peak_memory_bytes
    if host_only:
        return {0: peak[-1]} if -1 in peak else {}
    return {device: size for device, size in peak.items() if device >= 0}
