"""Memory copies and sets of one process, by direction and kind of host memory, and the sums of several processes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.intervals import EMPTY, clip, difference, length, merge, union
from harness.analysis.process.kinds import MEMSET, copy_label
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Copy, CopySize
from harness.theory.devices import host_link
from harness.traces.trace import Activity, CopyKind, Events, HostMemory

SMALL_BYTES = 1 << 16  # a link of 25 GB/s sends them in 2.6 µs, about as long as a copy takes to begin
SIZES = (0, *(1 << power for power in range(16, 34)))  # the least bytes of each class of sizes
TO_DEVICE, TO_HOST = copy_label(CopyKind.H2D), copy_label(CopyKind.D2H)
HOST_COPIES = (TO_DEVICE, TO_HOST)
_ON_DEVICE = (CopyKind.D2D, CopyKind.P2P)
_SUMS = ("count", "bytes", "duration_ns", "exposed_ns", "small_count", "small_ns")

Key = tuple[str, str | None]  # direction, memory


def copy_table(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> list[Copy]:
    """The copies and sets among `chosen`, per direction and memory."""
    events = measured.view.events
    groups = _groups(events, chosen)
    exposed = dict.fromkeys(groups, 0)
    for device, rows in measured.rows.items():
        left = EMPTY  # what a group before has been given already
        start, end = measured.windows[device]
        for key, of in groups.items():
            mine = of[rows]
            copied = union(events.start_ns[rows][mine], events.end_ns[rows][mine])
            own = difference(copied, measured.busy[device].working)
            exposed[key] += length(clip(difference(own, left), start, end))
            left = merge(left, own)
    return [_copy(key, events, of, exposed[key]) for key, of in groups.items()]


def _groups(events: Events, chosen: NDArray[np.bool_]) -> dict[Key, NDArray[np.bool_]]:
    copied = np.flatnonzero(chosen & (events.activity == Activity.MEMCPY))
    pairs = set(zip(events.copy_kind[copied].tolist(), events.host_memory[copied].tolist(), strict=True))
    groups: dict[Key, NDArray[np.bool_]] = {}
    for kind, memory in sorted(pairs):
        of = np.zeros(len(events), np.bool_)
        of[copied] = (events.copy_kind[copied] == kind) & (events.host_memory[copied] == memory)
        groups[copy_label(kind), _memory(kind, memory)] = of
    sets = chosen & (events.activity == Activity.MEMSET)
    return groups | {(MEMSET, None): sets} if sets.any() else groups


def _memory(copy_kind: int, host_memory: int) -> str | None:
    if host_memory != HostMemory.UNKNOWN:
        return HostMemory(host_memory).name.lower()
    return "device" if copy_kind in _ON_DEVICE else None


def _copy(hashable: Key, events: Events, of: NDArray[np.bool_], exposed_ns: int) -> Copy:
    duration = (events.end_ns - events.start_ns)[of]
    size = np.maximum(events.bytes[of], 0)
    known = events.bytes[of] >= 0
    classes = np.searchsorted(SIZES, size, side="right") - 1
    by_size = [
        CopySize(
            at_least_bytes=SIZES[i],
            count=int(here.sum()),
            bytes=int(size[here].sum()),
            duration_ns=int(duration[here].sum()),
        )
        for i in range(len(SIZES))
        if (here := (classes == i) & known).any()
    ]
    small = known & (size < SMALL_BYTES)
    return Copy(
        direction=hashable[0],
        memory=hashable[1],
        count=len(duration),
        bytes=int(size.sum()),
        duration_ns=int(duration.sum()),
        exposed_ns=exposed_ns,
        small_count=int(small.sum()),
        small_ns=int(duration[small].sum()),
        largest_bytes=int(size.max(initial=0)),
        sizes=by_size,
    )


def merge_copies(tables: list[list[Copy]]) -> list[Copy]:
    """One table of several: sums per direction and memory, largest time first. Bandwidth: bytes over the sum of
    durations, 10⁹ bytes per second (bytes per nanosecond)."""
    groups: defaultdict[Key, list[Copy]] = defaultdict(list)
    for row in (row for table in tables for row in table):
        groups[row.direction, row.memory].append(row)
    merged = []
    for (direction, memory), rows in groups.items():
        sums: dict[str, int] = {field: sum(getattr(row, field) for row in rows) for field in _SUMS}
        known = sums["bytes"] > 0 and sums["duration_ns"] > 0
        merged.append(
            Copy(
                direction=direction,
                memory=memory,
                largest_bytes=max(row.largest_bytes for row in rows),
                sizes=_merged_sizes(rows),
                bandwidth_gb_per_s=sums["bytes"] / sums["duration_ns"] if known else None,
                **sums,
            )
        )
    return sorted(merged, key=lambda c: (-c.duration_ns, c.direction, c.memory or ""))


def with_links(copies: list[Copy], device_names: set[str | None]) -> list[Copy]:
    """The copies between host and device with their link's nominal bandwidth, if all devices have the same link."""
    links = {host_link(name) for name in device_names}
    link = links.pop() if len(links) == 1 else None
    if link is None:
        return copies
    told = {"link_gb_per_s": link.gb_per_s}
    return [copy.model_copy(update=told) if copy.direction in HOST_COPIES else copy for copy in copies]


def _merged_sizes(copies: list[Copy]) -> list[CopySize]:
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for size in (size for row in copies for size in row.sizes):
        total = sums[size.at_least_bytes]
        sums[size.at_least_bytes] = [total[0] + size.count, total[1] + size.bytes, total[2] + size.duration_ns]
    return [
        CopySize(at_least_bytes=least, count=count, bytes=size, duration_ns=ns)
        for least, (count, size, ns) in sorted(sums.items())
    ]
