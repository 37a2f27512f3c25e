"""A Kineto file to a Trace: gathers its records in one pass, then builds the columns. A file of several ranks that
something tells apart becomes their processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.common.paths import PROGRAM
from harness.traces.columns import (
    constant,
    distinct,
    distinct_count,
    of_several_devices,
    once,
    sorted_calls,
    sorted_spans,
    sorting_order,
    take,
)
from harness.traces.errors import TraceError
from harness.traces.kineto.chrome_events import DEVICES_APART, ReadingPlan, census_of, plan_of, what_is_there
from harness.traces.kineto.collectives import (
    SPAN_PREFIX,
    by_copy_engines,
    device_events,
    host_events,
    kernel_messages,
    span_messages,
)
from harness.traces.kineto.fill import About, gathered_from, identity, names_no_gpu, salvaged
from harness.traces.kineto.framing import Records
from harness.traces.kineto.gather import KeptRecords
from harness.traces.kineto.records import IGNORED, KIND_OF_CATEGORY
from harness.traces.nccl_calls import Message, collectives
from harness.traces.progress import OnProgress
from harness.traces.trace import (
    I64,
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
_NOTHING = (
    "the file holds {what}, which are neither a device's work nor operators of PyTorch: record with torch.profiler, "
    f"nsys or rocprofv3, as `{PROGRAM} run -- PROGRAM` does"
)
_EMPTY = "the file holds no span of time: nothing ran while the profiler recorded"
_SAME_NUMBERS = (
    "launches have the number of another launch: the file holds several processes, or several recordings, that nothing "
    "tells apart, and their work is added up as if it were one process's; give a file for each of them"
)
_DAMAGED_HEADER = "the text around the events is damaged, so rank, devices or clock may be missing"
_SAME = 0.01  # of the launches of a process, that have another's number


def read_kineto(path: Path, progress: OnProgress) -> Trace:
    """Read one rank's trace. Raises TraceError: the file cannot be read as a trace.

    A GPU's work becomes the events; without a GPU the operators are the events, and gloo's spans the communication.
    """
    no_gpu = names_no_gpu(path)
    gathered, records, about = gathered_from(path, progress, operators=no_gpu)
    plan = plan_of(census_of(salvaged(path, progress))) if _needs_census(gathered) else None
    if plan is not None:
        gathered, records, about = gathered_from(path, progress, operators=no_gpu, plan=plan)
    host_only = len(gathered.device) == 0
    if host_only and not no_gpu and not records.truncated:
        gathered, _, about = gathered_from(path, progress, operators=True, plan=plan)
    is_empty = not any(map(len, (gathered.device, gathered.calls, gathered.ranges, gathered.operators, gathered.host)))
    every_call = sorted_calls(Calls(**gathered.calls.joined()))
    calls = once(every_call)
    host_only = host_only and not _launching(calls.name, gathered.names.texts)
    # A file holds the ranges before the GPU's work, so a cut file may have ranges without their work.
    last_ns = (gathered.operators if host_only else gathered.device).last("start_ns")
    work = gathered.device.joined()
    merged = of_plan(plan, work) if plan is not None and plan.ranks and not host_only else None
    calls = _of_process(calls, gathered, merged)
    context = None
    if host_only:
        events, communication = _host_parts(gathered, about)
    else:
        process = constant(gathered.pid, len(work["name"])) if merged is None else merged.of(work["device"])
        context = of_several_devices(process, work.pop("context"), work["device"])
        events = device_events(gathered, work, process, calls)
        events, copied = by_copy_engines(gathered, events)
        messages = copied | kernel_messages(gathered, events)
        events, communication = _in_order(events, messages, gathered, about)
    ranges = _of_process(_ranges(gathered), gathered, merged)
    notes = [*_notes(records, about, gathered, host_only, merged), *(plan.notes if plan else ())]
    notes += [context] if context is not None else []
    one = merged is None and _processes(gathered) < 2
    launches = (constant(gathered.pid, len(every_call)), every_call.name, every_call.correlation)
    if one and plan is not None and _numbered_twice(*launches, gathered.names.texts):
        notes.append(_SAME_NUMBERS)  # without a plan it was asked before
    if is_empty:
        if records.truncated:
            raise TraceError(path, f"{records.truncated}, before any work")
        notes.append(_NOTHING.format(what=what_is_there(plan.census)) if plan else _EMPTY)
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


def _needs_census(gathered: KeptRecords) -> bool:
    """Whether the file is no plain one of Kineto: nothing of it is known, or some of it is not; or its processes have
    names, or numbers in common, or it has several devices and no host, so that it may be several ranks'."""
    host = (gathered.calls, gathered.ranges, gathered.operators, gathered.host)
    if gathered.seen - {*KIND_OF_CATEGORY, *IGNORED, ""} or gathered.named_processes:
        return True
    if not any(map(len, host)) and distinct_count(gathered.device.column("device")) != 1:
        return True
    process, name, correlation = map(gathered.calls.column, ("process", "name", "correlation"))
    return _numbered_twice(process, name, correlation, gathered.names.texts)


def _numbered_twice(process: I64, name: NDArray[np.integer[Any]], correlation: I64, names: list[str]) -> bool:
    """Whether launches of one process have the same number, as they never have in one recording of it."""
    rows = np.flatnonzero(np.isin(name, _launching(name, names)) & (correlation > 0))
    of_each = (correlation[rows][process[rows] == pid] for pid in distinct(process[rows]))
    return any(distinct_count(numbers) < (1 - _SAME) * len(numbers) for numbers in of_each)


def _launching(name: NDArray[np.integer[Any]], names: list[str]) -> list[int]:
    """Those of the calls' names that put work on a device: the host never stands in for a device that was used."""
    return [number for number in np.flatnonzero(np.bincount(name)).tolist() if launches_work(names[number])]


def _accelerators(gathered: KeptRecords, events: Events) -> dict[int, str]:
    """The names of devices that are no GPUs, by number."""
    kind = gathered.accelerator
    return dict.fromkeys(np.unique(events.device).tolist(), kind) if kind else {}


def _of_process(rows: _Rows, gathered: KeptRecords, merged: MergedRanks | None) -> _Rows:
    """Rows of the host with their own processes, if these are ranks; else all are one process."""
    return rows if merged is not None else replace(rows, process=constant(gathered.pid, len(rows.process)))


def _identity(identity: Identity, merged: MergedRanks | None) -> Identity:
    """Of a merged file no rank is the file's; a header that it has is one rank's."""
    if merged is None:
        return identity
    names = {number: identity.device_names.get(number % DEVICES_APART, "") for number in merged.process}
    return replace(identity, rank=None, ranks=merged.ranks, device_names={n: name for n, name in names.items() if name})


def _notes(
    records: Records, about: About, gathered: KeptRecords, host_only: bool, merged: MergedRanks | None
) -> Iterator[str]:
    """What was salvaged or is missing."""
    if records.truncated:
        yield f"{records.truncated}; the events before that were read"
    elif not about.whole:
        yield _DAMAGED_HEADER
    elif host_only and about.devices:
        yield _HOST_STANDS_IN
    if merged is None and (processes := _processes(gathered)) > 1:
        yield (
            f"the file holds {processes} processes, which are read as one: steps and launches may belong to another "
            "process than the work; give a file for each process"
        )
    if records.unreadable:
        yield _left_out(records.unreadable, "not valid JSON")
    if gathered.timeless:
        yield _left_out(gathered.timeless, "without a valid duration")
    if gathered.unreadable:
        yield f"{_left_out(gathered.unreadable, 'not readable')} (the first: {gathered.why_unreadable})"


def _processes(gathered: KeptRecords) -> int:
    numbers = gathered.accelerator_numbers  # a runtime's calls may have them
    return max((len(pids - numbers) for pids in gathered.pids.values()), default=0)


def _left_out(count: int, why: str) -> str:
    return f"1 record was left out: {why}" if count == 1 else f"{count:,} records were left out: {why}"


def _ranges(gathered: KeptRecords) -> Ranges:
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


def _host(gathered: KeptRecords, host_only: bool) -> HostSpans:
    """The long spans; operators that were gathered whole are among them where they are not the events."""
    columns = gathered.host.joined()
    if not host_only:
        operators = gathered.operators.joined()
        long = operators["end_ns"] - operators["start_ns"] >= SHORTEST_HOST_NS
        operators["kind"] = constant(HostKind.OPERATOR, len(long), np.uint8)
        columns = {name: np.concatenate([column, operators[name][long]]) for name, column in columns.items()}
    return sorted_spans(HostSpans(**columns))


def _host_parts(gathered: KeptRecords, about: About) -> tuple[Events, Collectives]:
    spans, messages, issued = span_messages(gathered)
    events = host_events(gathered, spans, issued)
    first = len(events) - len(spans)
    return _in_order(events, {first + row: message for row, message in messages.items()}, gathered, about)


def _in_order(
    events: Events, messages: dict[int, Message], gathered: KeptRecords, about: About
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


def _peak_memory(gathered: KeptRecords, host_only: bool) -> dict[int, int]:
    peak = gathered.peak_memory_bytes
    if host_only:
        return {0: peak[-1]} if -1 in peak else {}
    return {device: size for device, size in peak.items() if device >= 0}


@dataclass(frozen=True)
class MergedRanks:
    """process: of each device. ranks: of each process."""

    process: dict[int, int]
    ranks: dict[int, int]

    def of(self, device: NDArray[np.integer[Any]]) -> I64:
        """The process of each event, by its device."""
        found: I64 = np.full(len(device), -1, np.int64)
        for number, pid in self.process.items():
            found[device == number] = pid
        return found


def of_plan(plan: ReadingPlan, device: Mapping[str, NDArray[Any]]) -> MergedRanks:
    """The ranks that something in the file tells apart."""
    process = {number: plan.pids[number // DEVICES_APART] for number in distinct(device["device"])}
    return MergedRanks(process, dict(zip(plan.pids, plan.ranks, strict=True)))
