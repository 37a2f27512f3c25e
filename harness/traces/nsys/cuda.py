"""Kernels, copies, sets and API calls of an nsys export as columns."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from harness.traces.columns import (
    AnyColumn,
    NameTable,
    constant,
    device_numbers,
    joined,
    launches,
    reordered,
    sorted_calls,
    sorting_order,
    unknown,
)
from harness.traces.database import Database
from harness.traces.nsys.devices import Devices
from harness.traces.nsys.ids import names_of, process_of, thread_of
from harness.traces.trace import Activity, Calls, CopyKind, Events, HostMemory

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_VERSION = re.compile(r"_(?:v\d+|ptsz|ptds)(?:_.*)?$")  # cudaLaunchKernel_v7000, cudaMemcpyAsync_ptsz
_LABELS = ("demangledName", "shortName", "mangledName")  # the best first
_UNNAMED, _UNNAMED_SHARE = "[unnamed kernel]", 0.03
# CUDA_MEMOPR_MEMORY_KIND_…; the others are the device's own.
_HOST_MEMORY = {0: HostMemory.PAGEABLE, 1: HostMemory.PINNED, 4: HostMemory.MANAGED, 6: HostMemory.MANAGED}

# CUpti_ActivityMemcpyKind: arrays are device memory, and managed memory moves as with explicit copies.
_DIRECTIONS = {
    **dict.fromkeys((1, 3, 11), CopyKind.H2D),
    **dict.fromkeys((2, 4, 12), CopyKind.D2H),
    **dict.fromkeys((5, 6, 7, 8, 13), CopyKind.D2D),
    10: CopyKind.P2P,
}
_COPY_NAMES = {
    CopyKind.H2D: "Memcpy HtoD",
    CopyKind.D2H: "Memcpy DtoH",
    CopyKind.D2D: "Memcpy DtoD",
    CopyKind.P2P: "Memcpy PtoP",
    CopyKind.UNKNOWN: "Memcpy",
}

EventColumns = dict[str, AnyColumn]


def device_events(database: Database, names: NameTable, calls: Calls, devices: Devices) -> Events:
    """All work on GPUs, sorted as `Events` requires."""
    table = joined([part(database, names) for part in (_kernels, _graphs, _copies, _sets)])
    table["device"] = devices.of_cuda(table["process"], table["device"])
    order = sorting_order(table["start_ns"], table["device"])
    if order is not None:
        for name in table:  # one column at a time: all at once would take twice the memory
            table[name] = reordered(table[name], order)
    launch_ns, launch_thread = launches(table["correlation"], table["process"], calls)
    dtype = constant(-1, len(launch_ns), np.int32)
    return Events(**table, launch_ns=launch_ns, launch_thread=launch_thread, dtype=dtype)


def _part(raw: EventColumns, activity: Activity, name: AnyColumn, **more: AnyColumn) -> EventColumns:
    n = len(name)
    return {
        "start_ns": raw.pop("start"),
        "end_ns": raw.pop("end"),
        "device": device_numbers(raw.pop("deviceId")),
        "stream": raw.pop("streamId"),
        "correlation": raw.pop("correlationId"),
        "process": process_of(raw.pop("globalPid")),
        "name": name,
        "activity": constant(activity, n, np.uint8),
        "bytes": unknown(n),
        "copy_kind": constant(-1, n, np.int32),
        "host_memory": constant(0, n, np.uint8),
        **more,
    }


def _kernels(database: Database, names: NameTable) -> EventColumns:
    label, *others = [name for name in _LABELS if name in database.columns(KERNELS)] or _LABELS[:1]
    raw = database.integers(KERNELS, *_COMMON, label)
    text = raw.pop(label)
    for other in others:
        if (text >= 0).all():
            break
        text = np.where(text < 0, database.integers(KERNELS, other)[other], text)
    return _part(raw, Activity.KERNEL, names_of(database, names, text, _UNNAMED))


def without_names(events: Events, names: NameTable) -> str | None:
    """A sentence for a trace in which too many kernels have no name to know which of them communicate."""
    if _UNNAMED not in names:
        return None
    kernels = events.activity == Activity.KERNEL
    duration = np.where(kernels, events.end_ns - events.start_ns, 0)
    unnamed = kernels & (events.name == names[_UNNAMED])
    share = duration[unnamed].sum() / max(duration.sum(), 1)
    if share <= _UNNAMED_SHARE:
        return None
    return f"{unnamed.sum()} kernels ({share:.0%} of kernel time) have no name, so communication among them is not seen"


def _graphs(database: Database, names: NameTable) -> EventColumns:
    """Whole CUDA graphs: nsys records them in place of their kernels, unless it is asked for nodes."""
    raw = database.integers(GRAPHS, *_COMMON, "graphId")
    name = names.indices(f"CUDA graph {number}" for number in raw["graphId"].tolist())
    return _part(raw, Activity.KERNEL, name)


def _copies(database: Database, names: NameTable) -> EventColumns:
    raw = database.integers(COPIES, *_COMMON, "bytes", "copyKind", "srcKind", "dstKind")
    kind = np.array([_DIRECTIONS.get(k, CopyKind.UNKNOWN) for k in raw["copyKind"].tolist()], np.int32)
    side = np.select([kind == CopyKind.H2D, kind == CopyKind.D2H], [raw["srcKind"], raw["dstKind"]], -1)
    memory = np.array([_HOST_MEMORY.get(k, HostMemory.UNKNOWN) for k in side.tolist()], np.uint8)
    name = names.indices(_COPY_NAMES[CopyKind(k)] for k in kind.tolist())
    return _part(raw, Activity.MEMCPY, name, bytes=raw["bytes"], copy_kind=kind, host_memory=memory)


def _sets(database: Database, names: NameTable) -> EventColumns:
    raw = database.integers(SETS, *_COMMON, "bytes")
    name = names.indices("Memset" for _ in range(len(raw["start"])))
    return _part(raw, Activity.MEMSET, name, bytes=raw["bytes"])


def api_calls(database: Database, names: NameTable) -> Calls:
    """Runtime and driver calls, without the version that CUDA appends to their names."""
    wanted = ("start", "end", "nameId", "globalTid", "correlationId")
    raw = joined([database.integers(table, *wanted) for table in CALLS])
    thread = raw.pop("globalTid")
    return sorted_calls(
        Calls(
            start_ns=raw["start"],
            end_ns=raw["end"],
            name=names_of(database, names, raw.pop("nameId"), "[unnamed call]", partial(_VERSION.sub, "")),
            thread=thread_of(thread),
            correlation=raw["correlationId"],
            process=process_of(thread),
        )
    )
