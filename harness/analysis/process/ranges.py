"""Ranges projected to the devices: how long each range kept a device busy, by the range's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import used
from harness.analysis.process.intervals import Intervals, RangeTree, lengths_within
from harness.analysis.summary import RangeTime
from harness.traces.operators import counted
from harness.traces.trace import I64, Events, Ranges

_ARGUMENTS = re.compile(r",? ?\b(?:seq|op_id|sizes|input_op_ids|input_sizes|fwd_thread_id)\b ?=.*", re.DOTALL)
RangeSums = dict[str, tuple[int, ...]]  # the numbers of RangeTime, in its order
_FIELDS = [field for field in RangeTime.__struct_fields__ if field != "name"]
_NONE = np.zeros(0, np.int64)
_COUNTERS = re.compile(r"(?<=[ _=-])\d+|#\d+|(?<=\bmb)\d+")


def without_arguments(name: str) -> str:
    """A name without the arguments that PyTorch's profiler adds to it.

    >>> without_arguments("FSDP::pre_forward (blocks.2), op_id = 990874")
    'FSDP::pre_forward (blocks.2)'
    """
    return _ARGUMENTS.sub("", name)


@lru_cache(maxsize=1 << 16)
def range_label(name: str) -> str:
    """A name that all instances share: without arguments, and with `#` in place of counters.

    >>> range_label("aten::copy_, op_id = 991065"), range_label("forward mb3 stage1"), range_label("batch_17")
    ('aten::copy_', 'forward mb# stage1', 'batch_#')
    """
    return _COUNTERS.sub("#", without_arguments(name)).strip()


def project(
    ranges: Ranges,
    names: list[str],
    nesting: RangeTree,
    owned_events: tuple[Events, I64, NDArray[np.bool_]],
    idle: list[Intervals],
    *,
    messages: tuple[I64, I64] = (_NONE, _NONE),
) -> RangeSums:
    """Per label: instances, host time, kernels and their time, messages and their bytes.

    `owned_events` is the events, their owners as `owners_of_events` gives them, and which events are inside the
    window. `idle` is that time of each device; `idle_ns` has it at the main thread's innermost range.
    `messages` is the range row that began each collective, -1 without one, and its bytes, -1 where they are not
    known."""
    n = len(ranges.start_ns)
    if n == 0:
        return {}
    labels, label = _labels(ranges, names)
    spans = _spans(*owned_events, nesting.parent)
    outermost = _outermost(label, nesting.parent)
    every = np.ones(n, np.bool_)

    def per_label(values: I64, chosen: NDArray[np.bool_]) -> list[int]:
        sums = np.zeros(len(labels), np.int64)
        np.add.at(sums, label[chosen], values[chosen])
        return [int(s) for s in sums]

    columns = (
        per_label(np.ones(n, np.int64), outermost),
        per_label(ranges.end_ns - ranges.start_ns, outermost),
        per_label(spans.kernels, outermost),
        per_label(spans.kernel_ns, outermost),
        per_label(_idle_under(nesting, idle, n), every),
        per_label(_idle_inside(ranges, nesting, idle), outermost),
        *(per_label(sums, outermost) for sums in _messages(*messages, nesting.parent)),
    )
    return dict(zip(labels, zip(*columns, strict=True), strict=True))


def _messages(row: I64, size: I64, parent: I64) -> tuple[I64, I64]:
    """Per range row, its own and its descendants' collectives, and their known bytes."""
    count, total = np.zeros((2, len(parent)), np.int64)
    begun = row >= 0
    np.add.at(count, row[begun], 1)
    np.add.at(total, row[begun], np.maximum(size[begun], 0))
    for rows in by_depth(parent) if begun.any() else ():
        np.add.at(count, parent[rows], count[rows])
        np.add.at(total, parent[rows], total[rows])
    return count, total


def range_table(sums: RangeSums) -> list[RangeTime]:
    """The sums as rows, most kernel time first."""
    rows = [RangeTime(name=name, **dict(zip(_FIELDS, row, strict=True))) for name, row in sums.items()]
    return sorted(rows, key=lambda r: (-r.kernel_ns, -r.host_ns, r.name))


def _idle_under(nesting: RangeTree, idle: list[Intervals], n: int) -> I64:
    """Idle time of the devices per range row, given to the innermost range of the main thread."""
    result = np.zeros(n, np.int64)
    if nesting.main is None:
        return result
    start, end, row = nesting.main.segments()
    for device in idle:
        np.add.at(result, row, lengths_within(device, start, end))
    return result


def _idle_inside(ranges: Ranges, nesting: RangeTree, idle: list[Intervals]) -> I64:
    """The devices' idle time while a range row of the main thread is open, also in ranges inside it."""
    inside = [lengths_within(device, ranges.start_ns, ranges.end_ns) for device in idle]
    return np.where(ranges.thread == nesting.main_thread, np.sum(inside, axis=0, dtype=np.int64), 0)


def first_labels(ranges: Ranges, names: list[str]) -> I64:
    """For each range the first of the names that share its label, an index."""
    first: dict[str, int] = {}
    table = np.full(len(names) + 1, -1)
    for i in used(ranges.name):
        table[i] = first.setdefault(range_label(names[i]), i)
    return table[ranges.name]


def _labels(ranges: Ranges, names: list[str]) -> tuple[list[str], NDArray[np.intp]]:
    index: dict[str, int] = {}
    code = np.zeros(len(names), np.intp)
    for i in used(ranges.name):
        code[i] = index.setdefault(range_label(names[i]), len(index))
    return list(index), code[ranges.name]


@dataclass(frozen=True)
class _RangeSpans:
    kernel_ns: I64
    kernels: I64
    first_ns: I64
    last_ns: I64


def _spans(events: Events, owner: I64, inside: NDArray[np.bool_], parent: I64) -> _RangeSpans:
    """Per range row, its own and its descendants' kernels: summed, counted, first start, last end."""
    n = len(parent)
    chosen = np.flatnonzero(inside & (owner >= 0))
    of, start, end = owner[chosen], events.start_ns[chosen], events.end_ns[chosen]
    count = np.bincount(owner[counted(events, chosen)[0]], minlength=n).astype(np.int64)
    total = np.zeros(n, np.int64)
    np.add.at(total, of, end - start)
    first = np.full(n, np.iinfo(np.int64).max)
    last = np.full(n, np.iinfo(np.int64).min)
    np.minimum.at(first, of, start)
    np.maximum.at(last, of, end)
    for rows in by_depth(parent):
        up = parent[rows]
        np.add.at(total, up, total[rows])
        np.add.at(count, up, count[rows])
        np.minimum.at(first, up, first[rows])
        np.maximum.at(last, up, last[rows])
    worked = first <= last
    return _RangeSpans(total, count, np.where(worked, first, 0), np.where(worked, last, 0))


def device_spans(events: Events, owner: I64, parent: I64, rows: NDArray[np.intp]) -> tuple[I64, I64]:
    """First start and last end on the device of the work that each of `rows` launched; both 0 without work."""
    spans = _spans(events, owner, np.ones(len(events), np.bool_), parent)
    return spans.first_ns[rows], spans.last_ns[rows]


def by_depth(parent: I64) -> list[NDArray[np.intp]]:
    """Rows that have a parent, grouped by depth, deepest group first."""
    depth, above = (parent >= 0).astype(np.int32), parent.copy()
    rows = np.flatnonzero(above >= 0)
    while len(rows):  # each row jumps twice as far as before
        depth[rows] += depth[above[rows]]
        above[rows] = above[above[rows]]
        rows = rows[above[rows] >= 0]
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    return [order[bounds[d] : bounds[d + 1]] for d in range(len(bounds) - 2, -1, -1)]


def _outermost(label: NDArray[np.intp], parent: I64) -> NDArray[np.bool_]:
    """Rows without an ancestor of the same label: counting nested ranges of one label would count their time twice."""
    outermost = np.ones(len(label), np.bool_)
    several = np.bincount(label)[label] > 1
    rows = np.flatnonzero((parent >= 0) & several)
    above = parent[rows]
    while len(rows):
        outermost[rows[label[above] == label[rows]]] = False
        above = parent[above]
        further = (above >= 0) & outermost[rows]
        rows, above = rows[further], above[further]
    return outermost
