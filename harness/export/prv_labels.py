"""The numbers, types and labels of our Paraver traces: those of nsys2prv 0.5 where it has them.

So the same views open both traces. A view finds a type by its label first, by its number second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from harness.analysis.process.idle import COMMUNICATION, COMPUTE, MEMORY, NOT_WORK
from harness.export.objects import ParaverTask
from harness.traces.trace import I32, I64, Activity, CopyKind, RangeKind, Trace

NCCL_DOMAIN = "NCCL"  # ranges that NCCL records itself; nsys2prv gives them a type of their own
LAUNCH_TAG = 55001  # a line from the API call to its kernel
MEMORY_TAG = 55002  # a line from the API call to its copy

_COPIES: dict[int, str] = {
    CopyKind.H2D: "CUDA memcpy Host-to-Device",
    CopyKind.D2H: "CUDA memcpy Device-to-Host",
    CopyKind.D2D: "CUDA memcpy Device-to-Device",
    CopyKind.P2P: "CUDA memcpy Peer-to-Peer",
}


class EventType(IntEnum):
    """Numbers of event types. Ranges and metrics count on from theirs: +100 per NVTX domain, +1 per counter."""

    START_END = 9004
    CORRELATION = 9200
    METRICS = 9400
    NCCL_REGIONS = 9500
    COLLECTIVE_BYTES = 9501
    RANGES = 9600
    API = 63000000
    MEMORY = 63000001
    MEMORY_BYTES = 63000002
    KERNEL = 63000006
    NCCL = 63000007


class ThreadState(IntEnum):
    """Numbers of thread states, Extrae's; Paraver's function "Useful" is Running."""

    IDLE = 0
    RUNNING = 1
    GROUP_COMMUNICATION = 13
    MEMORY_TRANSFER = 17


TYPE_LABELS: dict[int, str] = {
    EventType.API: "CUDA library call",
    EventType.KERNEL: "CUDA kernel",
    EventType.MEMORY: "CUDA memcpy kernel",
    EventType.NCCL: "NCCL kernel",
    EventType.MEMORY_BYTES: "Memcopy size",
    EventType.CORRELATION: "Correlation ID",
    EventType.NCCL_REGIONS: "NCCL regions",
    EventType.COLLECTIVE_BYTES: "NCCL Message size [bytes]",
    EventType.START_END: "NVTX startend ranges",
}
STATE_LABELS: dict[int, str] = {
    ThreadState.IDLE: "Idle",
    ThreadState.RUNNING: "Running",
    ThreadState.GROUP_COMMUNICATION: "Group Communication",
    ThreadState.MEMORY_TRANSFER: "Memory transfer",
}
STATE_COLOURS: dict[int, tuple[int, int, int]] = {
    ThreadState.IDLE: (200, 200, 200),
    ThreadState.RUNNING: (0, 114, 178),
    ThreadState.GROUP_COMMUNICATION: (213, 94, 0),
    ThreadState.MEMORY_TRANSFER: (86, 180, 233),
}


def ranges_label(domain: str) -> str:
    """Label of the ranges of one NVTX domain; "" is the default one."""
    return f"NVTX pushpop ranges {domain or 'default'} domain"


@dataclass(frozen=True)
class Values:
    """An event type as the .pcf describes it. `values`: the label of each value; empty if it is a plain number."""

    number: int
    label: str
    values: Mapping[str, int]


def pcf_text(types: list[Values]) -> str:
    """The whole .pcf file, each label on one line. Without comments: BSC's readers refuse them."""
    parts = [
        "DEFAULT_OPTIONS\n\nLEVEL               THREAD\nUNITS               NANOSEC\nLOOK_BACK           100\n"
        "SPEED               1\nFLAG_ICONS          ENABLED\nNUM_OF_STATE_COLORS 1000\nYMAX_SCALE          37\n",
        "DEFAULT_SEMANTIC\n\nTHREAD_FUNC         State As Is\n",
        "STATES\n" + "".join(f"{int(state)}    {label}\n" for state, label in STATE_LABELS.items()),
        "STATES_COLOR\n" + "".join(f"{int(state)}    {{{r},{g},{b}}}\n" for state, (r, g, b) in STATE_COLOURS.items()),
    ]
    return "\n".join(parts + [_type_text(each) for each in types]) + "\n"


def clean(label: str) -> str:
    """The label on one line; "unnamed" if it is empty."""
    return " ".join(label.split()) or "unnamed"


def _type_text(values: Values) -> str:
    text = f"EVENT_TYPE\n0    {values.number}    {clean(values.label)}\n"
    if values.values:
        ordered = sorted(values.values.items(), key=lambda item: item[1])
        text += "VALUES\n0    End\n" + "".join(f"{value}    {clean(label)}\n" for label, value in ordered)
    return text


_COPY, _SET = "CUDA memcpy", "CUDA memset"


@dataclass(frozen=True)
class Labels:
    """The value of every name, per event type. API calls, kernels and copies share one numbering, as in nsys2prv."""

    by_type: dict[int, dict[str, int]]
    domains: dict[str, int]  # NVTX domain -> event type
    metrics: dict[str, int]  # counter -> event type

    @staticmethod
    def of(tasks: Sequence[ParaverTask]) -> Labels:
        """Number all names of the tasks, in alphabetical order."""
        shared: dict[int, list[set[str]]] = {
            EventType.API: [_names(task.trace, task.trace.calls.name[task.calls]) for task in tasks],
            EventType.KERNEL: [_event_names(task, (COMPUTE, NOT_WORK)) for task in tasks],
            EventType.NCCL: [_event_names(task, (COMMUNICATION,)) for task in tasks],
            EventType.MEMORY: [set(memory_names(task)) for task in tasks],
        }
        by_type: dict[int, dict[str, int]] = {}
        for number, sets in shared.items():
            by_type[number] = _numbered(sets, first=1 + sum(map(len, by_type.values())))
        domains = _union(_domains(task) for task in tasks)
        others = [domain for domain in domains if domain != NCCL_DOMAIN]
        types: dict[str, int] = {name: EventType.RANGES + 100 * i for i, name in enumerate(others)}
        types[NCCL_DOMAIN] = EventType.NCCL_REGIONS
        for number in (EventType.START_END, *types.values()):
            by_type[number] = _numbered(_range_names(task, number, types) for task in tasks)
        counters = _union({metric.name for metric in task.trace.metrics} for task in tasks)
        metrics = {name: EventType.METRICS + index for index, name in enumerate(counters)}
        return Labels(by_type, types, metrics)


def event_types(labels: Labels) -> list[Values]:
    types = [Values(number, label, labels.by_type.get(number, {})) for number, label in TYPE_LABELS.items()]
    types += [
        Values(number, ranges_label(domain), labels.by_type[number])
        for domain, number in labels.domains.items()
        if domain != NCCL_DOMAIN
    ]
    return types + [Values(number, name, {}) for name, number in labels.metrics.items()]


def range_type(task: ParaverTask, labels: Labels) -> I64:
    """The event type of each of the task's ranges."""
    ranges = task.trace.ranges
    domain, inverse = np.unique(ranges.domain[task.ranges], return_inverse=True)
    # A domain that has only start/end ranges gets no type of its own: none of its ranges needs it.
    types = [labels.domains.get(_domain(task.trace, d), EventType.START_END) for d in domain.tolist()]
    nested = np.array(types, np.int64)[inverse]
    return np.where(ranges.kind[task.ranges] == RangeKind.START_END, EventType.START_END, nested)


def memory_names(task: ParaverTask) -> list[str]:
    index = task.events[task.event_class == MEMORY]
    activity, kind = task.trace.events.activity[index], task.trace.events.copy_kind[index]
    return [
        _SET if a == Activity.MEMSET else _COPIES.get(k, _COPY)
        for a, k in zip(activity.tolist(), kind.tolist(), strict=True)
    ]


def _event_names(task: ParaverTask, classes: tuple[int, ...]) -> set[str]:
    return _names(task.trace, task.trace.events.name[task.events[np.isin(task.event_class, classes)]])


def _range_names(task: ParaverTask, number: int, labels_of: dict[str, int]) -> set[str]:
    of_range = range_type(task, Labels({}, labels_of, {}))
    return _names(task.trace, task.trace.ranges.name[task.ranges[of_range == number]])


def _domains(task: ParaverTask) -> set[str]:
    ranges = task.trace.ranges
    nested = task.ranges[ranges.kind[task.ranges] != RangeKind.START_END]
    return {_domain(task.trace, d) for d in np.unique(ranges.domain[nested]).tolist()}


def _domain(trace: Trace, index: int) -> str:
    return trace.names[index] if index >= 0 else ""


def _names(trace: Trace, column: I32) -> set[str]:
    return {trace.names[index] for index in np.unique(column).tolist() if index >= 0}


def _union(sets: Iterable[set[str]]) -> list[str]:
    return sorted(set().union(*sets))


def _numbered(sets: Iterable[set[str]], first: int = 1) -> dict[str, int]:
    return {name: number for number, name in enumerate(_union(sets), first)}
