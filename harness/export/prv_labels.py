"""The number of each name in a Paraver trace, the same for all tasks, so that one .pcf describes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.process.breakdown import COMMUNICATION, COMPUTE, MEMORY, NOT_WORK
from harness.export.objects import Task
from harness.export.prv_types import NCCL_DOMAIN, TYPE_LABELS, EventType, Values, ranges_label
from harness.traces.trace import I32, I64, Activity, CopyKind, RangeKind, Trace

_COPIES: dict[int, str] = {
    CopyKind.H2D: "CUDA memcpy Host-to-Device",
    CopyKind.D2H: "CUDA memcpy Device-to-Host",
    CopyKind.D2D: "CUDA memcpy Device-to-Device",
    CopyKind.P2P: "CUDA memcpy Peer-to-Peer",
}
_COPY, _SET = "CUDA memcpy", "CUDA memset"


@dataclass(frozen=True)
class Labels:
    """The value of every name, per event type. API calls, kernels and copies share one numbering, as in nsys2prv."""

    by_type: dict[int, dict[str, int]]
    domains: dict[str, int]  # NVTX domain -> event type
    metrics: dict[str, int]  # counter -> event type

    @staticmethod
    def of(tasks: Sequence[Task]) -> Labels:
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
        collectives = [(task.trace, task.trace.collectives) for task in tasks]
        by_type[EventType.COLLECTIVE] = _numbered(_names(trace, c.kind) for trace, c in collectives)
        by_type[EventType.COLLECTIVE_GROUP] = _numbered(_names(trace, c.group) for trace, c in collectives)
        counters = _union({metric.name for metric in task.trace.metrics} for task in tasks)
        metrics = {name: EventType.METRICS + index for index, name in enumerate(counters)}
        return Labels(by_type, types, metrics)


def event_types(labels: Labels) -> list[Values]:
    """Every event type that can occur, for the .pcf."""
    types = [Values(number, label, labels.by_type.get(number, {})) for number, label in TYPE_LABELS.items()]
    types += [
        Values(number, ranges_label(domain), labels.by_type[number])
        for domain, number in labels.domains.items()
        if domain != NCCL_DOMAIN
    ]
    return types + [Values(number, name, {}) for name, number in labels.metrics.items()]


def range_type(task: Task, labels: Labels) -> I64:
    """The event type of each of the task's ranges."""
    ranges = task.trace.ranges
    domain, inverse = np.unique(ranges.domain[task.ranges], return_inverse=True)
    # A domain that has only start/end ranges gets no type of its own: none of its ranges needs it.
    types = [labels.domains.get(_domain(task.trace, d), EventType.START_END) for d in domain.tolist()]
    nested = np.array(types, np.int64)[inverse]
    return np.where(ranges.kind[task.ranges] == RangeKind.START_END, EventType.START_END, nested)


def memory_names(task: Task) -> list[str]:
    """nsys2prv's name of each of the task's copies and sets."""
    index = task.events[task.event_class == MEMORY]
    activity, kind = task.trace.events.activity[index], task.trace.events.copy_kind[index]
    return [
        _SET if a == Activity.MEMSET else _COPIES.get(k, _COPY)
        for a, k in zip(activity.tolist(), kind.tolist(), strict=True)
    ]


def _event_names(task: Task, classes: tuple[int, ...]) -> set[str]:
    return _names(task.trace, task.trace.events.name[task.events[np.isin(task.event_class, classes)]])


def _range_names(task: Task, number: int, labels_of: dict[str, int]) -> set[str]:
    of_range = range_type(task, Labels({}, labels_of, {}))
    return _names(task.trace, task.trace.ranges.name[task.ranges[of_range == number]])


def _domains(task: Task) -> set[str]:
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
