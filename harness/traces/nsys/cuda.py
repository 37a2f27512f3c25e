"""Kernels, copies, sets, API calls, counters and network samples of an nsys export as columns."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import (
    TWICE,
    AnyColumn,
    Columns,
    NameTable,
    device_numbers,
    distinct_columns,
    joined,
    of_several_devices,
    once,
    sorted_calls,
    sorted_events,
    work,
)
from harness.traces.database import Database, whole
from harness.traces.nsys.devices import Devices, names_of, process_of, process_of_one, thread_of
from harness.traces.trace import I32, I64, Activity, Calls, CopyKind, Events, HostMemory, MetricSeries, NicSamples
from harness.traces.vocabulary import copy_name

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "contextId")
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
_GPU_BITS = 0xFF  # of a typeId; the others say which machine and source
_ALLOCATED = 0  # ENUM_CUDA_DEV_MEM_EVENT_OPER
_ON_DEVICE = (2, 5)  # ENUM_CUDA_MEM_KIND: device, device static
_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_FIRST_CALLS = ("cuInit", "cuDevicePrimaryCtxRetain", *(f"cuCtxCreate{v}" for v in ("", "_v2", "_v3", "_v4")))
_KEYS = ("globalId", "portId", "metricsListId", "metricsIdx")  # of one metric of one port
_BYTES = re.compile(r"(IB|Eth): Bytes (sent|received)")  # IP over InfiniBand is in the InfiniBand bytes already
_UNIT = re.compile(r"(?:bytes|B)\s*/\s*(s|ms|us|ns)", re.IGNORECASE)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def device_events(
    database: Database, names: NameTable, calls: Calls, devices: Devices
) -> tuple[Events, list[str | None]]:
    """All work on GPUs, sorted as `Events` requires, each once; and sentences, if rows are there again or devices are
    not those of their contexts."""
    table = joined([part(database, names) for part in (_kernels, _graphs, _copies, _sets)])
    table["device"] = devices.of_cuda(table["process"], table["device"])
    context = of_several_devices(table["process"], table.pop("context"), table["device"])
    every = sorted_events(table, calls)
    events = once(every)
    twice = TWICE.format(count=len(every) - len(events)) if len(every) > len(events) else None
    return events, [twice, context]


def _part(raw: Columns, activity: Activity, name: I32, **more: AnyColumn) -> Columns:
    return work(
        activity,
        name,
        start_ns=raw.pop("start"),
        end_ns=raw.pop("end"),
        device=device_numbers(raw.pop("deviceId")),
        stream=raw.pop("streamId"),
        correlation=raw.pop("correlationId"),
        process=process_of(raw.pop("globalPid")),
        context=raw.pop("contextId"),
        **more,
    )


def _kernels(database: Database, names: NameTable) -> Columns:
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


def _graphs(database: Database, names: NameTable) -> Columns:
    """Whole CUDA graphs: nsys records them in place of their kernels, unless it is asked for nodes."""
    raw = database.integers(GRAPHS, *_COMMON, "graphId")
    name = names.indices(f"CUDA graph {number}" for number in raw["graphId"].tolist())
    return _part(raw, Activity.KERNEL, name)


def _copies(database: Database, names: NameTable) -> Columns:
    raw = database.integers(COPIES, *_COMMON, "bytes", "copyKind", "srcKind", "dstKind")
    kind = np.array([_DIRECTIONS.get(k, CopyKind.UNKNOWN) for k in raw["copyKind"].tolist()], np.int32)
    side = np.select([kind == CopyKind.H2D, kind == CopyKind.D2H], [raw["srcKind"], raw["dstKind"]], -1)
    memory = np.array([_HOST_MEMORY.get(k, HostMemory.UNKNOWN) for k in side.tolist()], np.uint8)
    name = names.indices(map(copy_name, kind.tolist()))
    return _part(raw, Activity.MEMCPY, name, bytes=raw["bytes"], copy_kind=kind, host_memory=memory)


def _sets(database: Database, names: NameTable) -> Columns:
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


def metric_series(database: Database, devices: Devices) -> list[MetricSeries]:
    """Every sampled counter of every device, in order of time."""
    raw = database.integers("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
    if len(raw["timestamp"]) == 0:
        return []
    listed = database.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
    kinds = ((whole(kind), number, name) for kind, number, name in listed)
    name_of = {(kind & _GPU_BITS, number): str(name) for kind, number, name in kinds if kind is not None}
    device, metric = raw["typeId"] & _GPU_BITS, raw["metricId"]
    return [
        MetricSeries(
            name=name_of.get((int(device[rows[0]]), int(metric[rows[0]])), f"metric {metric[rows[0]]}"),
            device=devices.of_gpu(int(device[rows[0]])),
            time_ns=raw["timestamp"][rows],
            value=raw["value"][rows].astype(np.float64),
        )
        for rows in _series(raw["timestamp"], device, metric)
    ]


def peak_memory_bytes(database: Database, devices: Devices) -> dict[tuple[int, int], int]:
    """The most memory that each process had allocated at once, by process and device.

    Only of processes whose first calls of CUDA were recorded; others may have allocated memory before.
    """
    wanted = ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType")
    raw = database.integers(_MEMORY, *wanted, "address")
    raw = dict(zip(raw, distinct_columns(list(raw.values()))[0], strict=True))
    process = process_of(raw["globalPid"])
    kept = np.isin(raw["memKind"], _ON_DEVICE) & np.isin(process, _recorded_from_the_start(database))
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(raw["start"][rows], kind="stable")]
    signed = np.where(raw["memoryOperationType"][rows] == _ALLOCATED, 1, -1) * raw["bytes"][rows]
    device = devices.of_cuda(process[rows], raw["deviceId"][rows])
    peak = {}
    for owner, number in sorted(set(zip(process[rows].tolist(), device.tolist(), strict=True))):
        held = np.cumsum(signed[(process[rows] == owner) & (device == number)])
        if held.min() >= 0:
            peak[owner, number] = int(held.max())
    return peak


def _recorded_from_the_start(database: Database) -> list[int]:
    """Processes whose first call of CUDA is in the recording."""
    if not database.columns(_MEMORY):
        return []
    first = [number for number, _ in database.rows("StringIds", "id", "value", only=("value", _FIRST_CALLS))]
    threads = [row for table in CALLS for row in database.rows(table, "globalTid", only=("nameId", first))]
    return sorted({process_of_one(thread) for (thread,) in threads if whole(thread) is not None})


_SAMPLES, _METRICS = "NET_NIC_METRIC", "TARGET_INFO_NETWORK_METRICS"


class _Metric(NamedTuple):
    """One row of nsys' list. scale: from its unit to bytes per second."""

    family: str  # IB | Eth
    sent: bool
    scale: float


def nic_samples(database: Database) -> tuple[list[NicSamples], str | None]:
    """Each direction of each port that has samples, by port; and a sentence where they cannot be read.

    A port has a metric for InfiniBand and one for Ethernet: that with more bytes is taken, and never both.
    """
    if not database.has_rows(_SAMPLES):
        return [], None
    metrics = _metrics(database)
    if not metrics:
        return [], "its samples of network ports are left out: none of their metrics is bytes per time"
    wanted = ("start", "end", *_KEYS)
    numbers = {number for _, number in metrics}
    raw, value = database.measured(_SAMPLES, *wanted, value="value", only=("metricsIdx", numbers))
    names = _device_names(database)
    found: dict[tuple[int, int], dict[str, list[NicSamples]]] = defaultdict(lambda: defaultdict(list))
    for rows in _series(raw["start"], *(raw[name] for name in _KEYS)):
        device, port, listed, number = (int(raw[name][rows[0]]) for name in _KEYS)
        metric = metrics.get((listed, number))
        if metric is None:
            continue
        name = names.get(device, f"adapter {device}") + (f":{port}" if port > 0 else "")
        start, end, rate = raw["start"][rows], raw["end"][rows], value[rows] * metric.scale
        found[device, port][metric.family].append(NicSamples(name, metric.sent, start, end, rate))
    return [one for families in found.values() for one in max(families.values(), key=_moved)], None


def _series(time_ns: I64, *keys: I64) -> list[NDArray[np.intp]]:
    """The rows with the same keys, each in order of time."""
    order = np.lexsort((time_ns, *reversed(keys)))
    changes = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    return np.split(order, np.flatnonzero(changes) + 1) if len(order) else []


def _moved(directions: list[NicSamples]) -> float:
    return sum(float(np.dot(each.bytes_per_s, each.end_ns - each.start_ns)) for each in directions)


def _metrics(database: Database) -> dict[tuple[int, int], _Metric]:
    """The metrics that are bytes per time, by list and number."""
    found = {}
    for listed, number, name, unit in database.rows(
        _METRICS, "metricsListId", "metricsIdx", "name", "unit", filled=["name"]
    ):
        kind, scale = _BYTES.fullmatch(str(name)), _UNIT.fullmatch(str(unit).strip())
        if kind and scale and whole(listed) is not None and whole(number) is not None:
            per_second = _PER_SECOND[scale[1].lower()]
            found[listed, number] = _Metric(kind[1], kind[2] == "sent", per_second)
    return found


def _device_names(database: Database) -> dict[int, str]:
    """The adapters' names by the id that the samples have."""
    names = dict(database.rows("TARGET_INFO_NIC_INFO", "nicId", "name"))
    listed = database.rows("NIC_ID_MAP", "globalId", "nicId")
    return {number: str(names[nic]) for number, nic in listed if nic in names and whole(number) is not None}
