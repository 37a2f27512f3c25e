"""Collectives of a trace: each NCCL kernel or gloo span with the message that it carries."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque

from harness.traces.kineto.cpu import SPAN_PREFIX
from harness.traces.kineto.gather import Gathered, HostMessage
from harness.traces.kineto.message_args import from_arguments
from harness.traces.messages import Message, communication_kernels, completed
from harness.traces.trace import Events

_Waiting = defaultdict[
    tuple[str | None, int], deque[int]
]  # rows of spans by kind and elements, in order of start
_DEEPEST_NESTING = 4  # spans that may lie between a launch and the span with its message


def kernel_messages(gathered: Gathered, events: Events) -> dict[int, Message]:
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
    spans = threads.get(thread, [])
    last = bisect_right(spans, launch_ns, key=lambda span: span.start_ns)
    best = None
    for span in spans[max(0, last - _DEEPEST_NESTING) : last][::-1]:
        if span.end_ns < launch_ns:
            continue
        message = from_arguments(span.name, span.args)
        if message.kind is not None and message.bytes >= 0:
            return message
        best = best or (message if message.kind is not None else None)
    return best


def span_messages(gathered: Gathered) -> tuple[list[HostMessage], dict[int, Message], list[tuple[int, int]]]:
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


def _work_of(
    requested: Message,
    operator: HostMessage,
    spans: list[HostMessage],
    waiting: _Waiting,
) -> int | None:
    """Takes out of the waiting spans the first one after an operator that can be its work; operators come in order."""
    for kind in (requested.kind, "all_reduce") if requested.kind == "reduce_scatter" else (requested.kind,):
        fitting = [waiting[kind, size] for size in {-1, 0, requested.elements_in, requested.elements_out}]
        for rows in fitting:
            while rows and spans[rows[0]].start_ns < operator.start_ns:
                rows.popleft()  # it began before this operator, and so before all later ones
        first = min((rows for rows in fitting if rows), key=lambda rows: rows[0], default=None)
        if first is not None:
            return first.popleft()
    return None


def _merged(requested: Message, done: Message) -> Message:
    requested.dtype = requested.dtype or done.dtype
    if requested.elements_in < 0:
        requested.elements_in = requested.elements_out = done.elements_in
    return requested
