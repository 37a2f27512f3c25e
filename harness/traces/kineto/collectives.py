"""Collectives of a Kineto trace: their arguments, and where they ran on GPUs or on CPU threads."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import constant, launches, unknown
from harness.traces.kineto.framing import plainly
from harness.traces.kineto.gather import HostMessage, KeptRecords
from harness.traces.kineto.pick import MESSAGE_OPERATOR
from harness.traces.kineto.records import MessageArgs, integer
from harness.traces.nccl_calls import Message, communication_kernels, completed
from harness.traces.trace import I32, I64, Activity, Calls, CopyKind, Events, HostMemory
from harness.traces.vocabulary import collective_kind, dtype_name

_shapes, _texts = msgspec.json.Decoder(list[Any]), msgspec.json.Decoder(list[str])
_MOST_DIMENSIONS = 64  # as PyTorch has
_TO_ONE = ("c10d::send", "c10d::recv_")
_OUTPUT_THEN_INPUT = ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::alltoall_base_")
SPAN_PREFIX = "gloo:"
_ROWS_AT_ONCE = 8192
_NEVER = (1 << 63) - 1
_ISSUES = (MESSAGE_OPERATOR, "c10d::", "_c10d_functional::")  # operators that enqueue or wait and do not compute
_DIRECTIONS = (("HtoD", CopyKind.H2D), ("DtoH", CopyKind.D2H), ("DtoD", CopyKind.D2D), ("PtoP", CopyKind.P2P))
_MEMORY = (("Pageable", HostMemory.PAGEABLE), ("Pinned", HostMemory.PINNED), ("Managed", HostMemory.MANAGED))
_BETWEEN_GPUS = (CopyKind.D2D, CopyKind.P2P)
_DEEPEST_NESTING = 4  # spans that may lie between a launch and the span with its message


def from_arguments(name: str, args: MessageArgs) -> Message:
    """A message from Kineto's arguments, or from the tensor shapes of a host's operator or span."""
    dtype = dtype_name(args.dtype) if args.dtype else None
    if args.name is not None or args.elements_in is not None:
        return Message(
            collective_kind(args.name or name),
            dtype,
            integer(args.elements_in),
            integer(args.elements_out),
            group=None if args.group is None else str(args.group),
            group_size=integer(args.group_size),
            peer=integer(args.receiver if args.receiver is not None else args.sender),
        )
    return _from_shapes(name, args)


def _from_shapes(name: str, args: MessageArgs) -> Message:
    kind = collective_kind(name)
    sizes = _element_counts(args.shapes, args.types or [])
    dtype = next((d for d in map(dtype_name, args.types or ()) if d is not None), None)
    if kind == "barrier":
        return Message(kind, None, 0, 0)
    first = sizes[0] if sizes else -1
    second = sizes[1] if len(sizes) > 1 else -1
    if name in _OUTPUT_THEN_INPUT and first > 0 and second > 0:
        ratio = max(first, second) // min(first, second)
        return Message(kind, dtype, second, first, group_size=ratio if kind != "all_to_all" else -1)
    return Message(kind, dtype, first, first, peer=_peer(args.values) if name in _TO_ONE else -1)


def _peer(values: msgspec.Raw) -> int:
    """The other rank among the values of an operator's arguments: tensors, group, rank, tag."""
    try:
        return integer(plainly(_texts, values)[2])
    except (msgspec.DecodeError, IndexError):
        return -1


def _element_counts(shapes: msgspec.Raw, types: Sequence[str]) -> list[int]:
    """Elements of each argument that is a tensor or a list of tensors; other arguments are left out.

    A number has the shape [] as a tensor without dimensions does: only the type shows which of them is one element.
    """
    counts = []
    try:
        listed = plainly(_shapes, shapes)
    except msgspec.DecodeError:
        return []
    for shape, word in zip_longest(listed, types, fillvalue=""):
        if not isinstance(shape, list):
            continue
        nested = bool(shape) and isinstance(shape[0], list)
        tensors = shape if nested else [shape]
        is_tensor = tensors != [[]] or dtype_name(word) is not None or (nested and word != "")
        if is_tensor and all(isinstance(tensor, list) for tensor in tensors):
            counts.append(_elements(tensors))
    return counts


def _elements(tensors: list[list[Any]]) -> int:
    """Elements of all tensors together; -1 where a shape is none."""
    lengths = [length for tensor in tensors for length in tensor]
    if max(map(len, tensors)) > _MOST_DIMENSIONS or not all(isinstance(n, int) and n >= 0 for n in lengths):
        return -1
    return sum(map(prod, tensors))


_Running = tuple[int, int, int]  # an operator that has begun: its number, start and end


def host_events(gathered: KeptRecords, spans: list[HostMessage], issued: list[tuple[int, int]]) -> Events:
    """Operators' own time, then the collectives' spans in their order, as events.

    `issued` is the start and thread of the operator behind each span, -1 where it is not known.
    """
    columns = gathered.operators.joined()
    name, thread = columns["name"], columns["thread"]
    stretches = _own_time(columns["start_ns"], columns["end_ns"], thread)
    start, end, owner = (np.array(column, np.int64) for column in stretches)
    serving = _message_threads(columns["start_ns"], columns["end_ns"], thread, spans)
    keep = _computes(gathered.names.texts, name)[owner] & ~np.isin(thread[owner], serving)
    start, owner, stream = start[keep], owner[keep], thread[owner[keep]]
    n, m = len(owner), len(spans)
    return Events(
        start_ns=_followed(start, [s.start_ns for s in spans]),
        end_ns=_followed(end[keep], [s.end_ns for s in spans]),
        name=_followed(name[owner], gathered.names.indices(s.name for s in spans)),
        activity=np.repeat(np.array([Activity.CPU_OP, Activity.CPU_COLLECTIVE], np.uint8), [n, m]),
        device=np.zeros(n + m, np.int32),
        stream=_followed(stream, [s.thread for s in spans]),
        correlation=_followed(owner, unknown(m)),
        launch_ns=_followed(start, [issued_ns for issued_ns, _ in issued]),
        launch_thread=_followed(stream, [issued_on for _, issued_on in issued]),
        bytes=unknown(n + m),
        copy_kind=constant(-1, n + m, np.int32),
        host_memory=np.zeros(n + m, np.uint8),
        dtype=_followed(columns["dtype"][owner], unknown(m)),
        process=constant(gathered.pid, n + m),
    )


def _followed(column: NDArray[Any], values: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([column, np.asarray(values, column.dtype)])


def _own_time(start: I64, end: I64, thread: I64) -> tuple[array[int], array[int], array[int]]:
    """Start, end and operator of each stretch in which an operator runs and no operator that it called."""
    starts, stops, owners = array("q"), array("q"), array("q")
    stack: list[_Running] = []  # outermost first
    now, on_thread = 0, -1  # the time up to which stretches are given
    last = np.array([len(start)])  # one more thread closes what is open in the last one
    order = np.concatenate([np.lexsort((-end, start, thread)), last])
    for operator, begins, ends, runs_on in _rows(
        order, *(np.append(column, _NEVER) for column in (start, end, thread))
    ):
        until = begins if runs_on == on_thread else _NEVER
        while stack and stack[-1][2] <= until:
            closed, _, closes = stack.pop()
            starts.append(now)
            now = max(now, closes)  # a damaged duration may be negative
            stops.append(now)
            owners.append(closed)
        may_run_to = ends
        if stack:
            caller, caller_begins, caller_ends = stack[-1]
            if begins > now or begins == caller_begins:
                starts.append(now)
                stops.append(begins)
                owners.append(caller)
            may_run_to = min(ends, caller_ends)  # clocks round, but a call never outlives its caller
        stack.append((operator, begins, may_run_to))
        now, on_thread = begins, runs_on
    return starts, stops, owners


def _rows(order: NDArray[np.intp], *columns: I64) -> Iterator[tuple[int, ...]]:
    """Rows in `order`, each with its own number first; a block at a time is converted to Python's numbers."""
    for first in range(0, len(order), _ROWS_AT_ONCE):
        some = order[first : first + _ROWS_AT_ONCE]
        yield from zip(some.tolist(), *(column[some].tolist() for column in columns), strict=True)


def _computes(texts: list[str], name: I32) -> NDArray[np.bool_]:
    verdicts = np.array([not text.startswith(_ISSUES) for text in texts], bool)
    return verdicts[name] if len(name) else np.empty(0, bool)


def _message_threads(start: I64, end: I64, thread: I64, spans: list[HostMessage]) -> list[int]:
    """Threads that only serve collectives: their computation is part of a collective."""
    serving = []
    for candidate in sorted({s.thread for s in spans}):
        mine = thread == candidate
        own = sorted((s.start_ns, s.end_ns) for s in spans if s.thread == candidate)
        starts, ends = np.array([a for a, _ in own]), np.array([b for _, b in own])
        covering = np.searchsorted(starts, start[mine], side="right") - 1
        if bool(((covering >= 0) & (ends[covering] >= end[mine])).all()):
            serving.append(candidate)
    return serving


def device_events(gathered: KeptRecords, columns: dict[str, NDArray[Any]], process: I64, calls: Calls) -> Events:
    """All work on GPUs, in the file's order."""
    name, activity = columns["name"], columns["activity"]
    launch_ns, launch_thread = launches(columns["correlation"], process, calls)
    columns["bytes"] = np.where(activity == Activity.KERNEL, -1, columns["bytes"])
    copies = activity == Activity.MEMCPY
    texts = gathered.names.texts
    memory = _by_name(texts, name, copies, host_memory)
    return Events(
        **columns,
        launch_ns=launch_ns,
        launch_thread=launch_thread,
        copy_kind=_by_name(texts, name, copies, copy_kind).astype(np.int32),
        host_memory=np.maximum(memory, HostMemory.UNKNOWN).astype(np.uint8),
        dtype=constant(-1, len(name), np.int32),
        process=process,
    )


def copy_kind(text: str) -> CopyKind:
    """The direction in a copy's name: "Memcpy HtoD (Pinned -> Device)"."""
    return next((kind for word, kind in _DIRECTIONS if word in text), CopyKind.UNKNOWN)


def host_memory(text: str) -> HostMemory:
    """The host's side in a copy's name; PyTorch for ROCm writes "Host", which is either of them."""
    return next((memory for word, memory in _MEMORY if word in text), HostMemory.UNKNOWN)


def _by_name(texts: list[str], name: I32, rows: NDArray[np.bool_], judge: Callable[[str], int]) -> I64:
    """`judge` of each row's name, asked once per distinct name; -1 on other rows."""
    verdicts = np.full(len(texts), -1, np.int64)
    for index in np.unique(name[rows]).tolist():
        verdicts[index] = judge(texts[index])
    return np.where(rows, verdicts[name], -1)


_Waiting = defaultdict[tuple[str | None, int], deque[int]]  # rows of spans by kind and elements, in order of start


def kernel_messages(gathered: KeptRecords, events: Events) -> dict[int, Message]:
    """The message of each communication kernel, by its row in `events` (in the file's order)."""
    texts = gathered.names.texts
    rows = communication_kernels(texts, events)
    hosts = _by_thread(gathered.host_messages)
    found = {}
    for row, name in zip(rows.tolist(), events.name[rows].tolist(), strict=True):
        args = gathered.device_messages.get(row)
        launched = (int(events.launch_thread[row]), int(events.launch_ns[row]))
        message = from_arguments(texts[name], args) if args else _on_host(hosts, *launched)
        found[row] = completed(message or Message(None), texts[name])
    return found


def _by_thread(spans: list[HostMessage]) -> dict[int, list[HostMessage]]:
    threads: dict[int, list[HostMessage]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_ns):
        threads[span.thread].append(span)
    return threads


def _on_host(threads: dict[int, list[HostMessage]], thread: int, launch_ns: int) -> Message | None:
    """The message of the innermost span that encloses a launch and has one."""
    best = None
    for span in _enclosing(threads, thread, launch_ns):
        message = from_arguments(span.name, span.args)
        if message.kind is not None and message.bytes >= 0:
            return message
        best = best or (message if message.kind is not None else None)
    return best


def _enclosing(threads: dict[int, list[HostMessage]], thread: int, launch_ns: int) -> list[HostMessage]:
    """The spans around a launch, the innermost first."""
    spans = threads.get(thread, [])
    last = bisect_right(spans, launch_ns, key=lambda span: span.start_ns)
    return [span for span in spans[max(0, last - _DEEPEST_NESTING) : last][::-1] if span.end_ns >= launch_ns]


def by_copy_engines(gathered: KeptRecords, events: Events) -> tuple[Events, dict[int, Message]]:
    """The events with copies between GPUs named after the collective that they carry out in place of a kernel, and the
    messages of these collectives, each at its first copy. A group of one rank copies too, and communicates with none.
    """
    hosts, copying = _by_thread(gathered.host_messages), dict[int, tuple[Message, list[int]]]()
    for row in np.flatnonzero(np.isin(events.copy_kind, _BETWEEN_GPUS)).tolist() if hosts else ():
        for span in _enclosing(hosts, int(events.launch_thread[row]), int(events.launch_ns[row]))[:1]:
            copying.setdefault(id(span), (from_arguments(span.name, span.args), []))[1].append(row)
    for row in communication_kernels(gathered.names.texts, events).tolist() if copying else ():
        for span in _enclosing(hosts, int(events.launch_thread[row]), int(events.launch_ns[row])):
            copying.pop(id(span), None)
    name, messages = events.name.copy(), dict[int, Message]()
    for message, rows in copying.values():
        if message.kind is not None and message.group_size > 1:
            name[rows] = gathered.names[f"nccl:{message.kind} by copies"]
            message.end_ns = int(events.end_ns[rows].max())
            messages[rows[0]] = message
    return replace(events, name=name), messages


def span_messages(gathered: KeptRecords) -> tuple[list[HostMessage], dict[int, Message], list[tuple[int, int]]]:
    """gloo's spans in order of start, their messages, and start and thread of the operators behind them.

    gloo runs a reduce-scatter as an all-reduce; only the operator has the collective and its number of ranks.
    """
    host = sorted(gathered.host_messages, key=lambda span: span.start_ns)
    spans = [span for span in host if span.name.startswith(SPAN_PREFIX)]
    messages = {row: from_arguments(span.name, span.args) for row, span in enumerate(spans)}
    waiting: _Waiting = defaultdict(deque)
    for row, message in messages.items():
        waiting[message.kind, message.elements_in].append(row)
    issued = [(-1, -1)] * len(spans)
    for operator in host:
        if not operator.name.startswith("c10d::"):
            continue
        message = from_arguments(operator.name, operator.args)
        work = _work_of(message, operator, spans, waiting)
        if work is not None:
            messages[work] = _merged(message, messages[work])
            issued[work] = (operator.start_ns, operator.thread)
    return spans, messages, issued


def _work_of(requested: Message, operator: HostMessage, spans: list[HostMessage], by_size: _Waiting) -> int | None:
    """Takes out of the waiting spans the first one after an operator that can be its work; operators come in order."""
    for kind in (requested.kind, "all_reduce") if requested.kind == "reduce_scatter" else (requested.kind,):
        fitting = [by_size[kind, size] for size in {-1, 0, requested.elements_in, requested.elements_out}]
        for rows in fitting:
            while rows and spans[rows[0]].start_ns < operator.start_ns:
                rows.popleft()  # it began before this operator, and so before all later ones
        first = min((rows for rows in fitting if rows), key=lambda rows: rows[0], default=None)
        if first is not None:
            return first.popleft()
    return None


def _merged(requested: Message, message: Message) -> Message:
    requested.dtype = requested.dtype or message.dtype
    if requested.elements_in < 0:
        requested.elements_in = requested.elements_out = message.elements_in
    return requested
