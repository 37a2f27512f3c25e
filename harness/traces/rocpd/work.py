"""Kernels and copies of a rocpd database as columns."""

from __future__ import annotations

import re

import numpy as np

from harness.traces.columns import (
    AnyColumn,
    NameTable,
    constant,
    device_numbers,
    joined,
    launches,
    reordered,
    sorting_order,
    unknown,
)
from harness.traces.rocpd.agents import Agents
from harness.traces.rocpd.tables import Recording, looked_up, named
from harness.traces.trace import I64, Activity, Calls, CopyKind, Events

KERNELS, COPIES = "kernel_dispatch", "memory_copy"
_COMMON = ("start", "end", "pid", "stream_id", "queue_id", "event_id")
_OBJECT = re.compile(
    r"( \[clone)? ?\.kd\]?$"
)  # of a kernel's descriptor, whose name is the kernel's and this
_UNNAMED = "[unnamed kernel]"
_COPY_NAMES = {
    CopyKind.H2D: "Memcpy HtoD",
    CopyKind.D2H: "Memcpy DtoH",
    CopyKind.D2D: "Memcpy DtoD",
    CopyKind.P2P: "Memcpy PtoP",
    CopyKind.UNKNOWN: "Memcpy",
}

Columns = dict[str, AnyColumn]


def device_events(recorded: list[tuple[Recording, Agents]], names: NameTable, calls: Calls) -> Events:
    """All work on GPUs, sorted as `Events` requires."""
    table = joined(
        [part(recording, agents, names) for recording, agents in recorded for part in (_kernels, _copies)]
    )
    order = sorting_order(table["start_ns"], table["device"])
    if order is not None:
        table = {name: reordered(column, order) for name, column in table.items()}
    launch_ns, launch_thread = launches(table["correlation"], table["process"], calls)
    dtype = constant(-1, len(launch_ns), np.int32)
    return Events(**table, launch_ns=launch_ns, launch_thread=launch_thread, dtype=dtype)


def _kernels(recording: Recording, agents: Agents, names: NameTable) -> Columns:
    raw = recording.integers(KERNELS, *_COMMON, "agent_id", "kernel_id")
    symbol = raw["kernel_id"]
    texts = recording.texts(symbol, "info_kernel_symbol", "kernel_name")
    texts |= {i: t for i, t in recording.texts(symbol, "info_kernel_symbol", "display_name").items() if t}
    name = named(symbol, {i: _OBJECT.sub("", text) for i, text in texts.items()}, names, _UNNAMED)
    return _part(recording, raw, Activity.KERNEL, name, device=looked_up(raw["agent_id"], agents.number))


def _copies(recording: Recording, agents: Agents, names: NameTable) -> Columns:
    """Copies from or to a GPU; what the host copies within its own memory is no device's work."""
    raw = recording.integers(COPIES, *_COMMON, "src_agent_id", "dst_agent_id", "size")
    gpus = list(agents.number)
    from_gpu, to_gpu = np.isin(raw["src_agent_id"], gpus), np.isin(raw["dst_agent_id"], gpus)
    keep = np.flatnonzero(from_gpu | to_gpu)
    raw = {column: values[keep] for column, values in raw.items()}
    source, target = (
        looked_up(raw["src_agent_id"], agents.number),
        looked_up(raw["dst_agent_id"], agents.number),
    )
    kind = np.select(
        [~from_gpu[keep], ~to_gpu[keep], source == target],
        [CopyKind.H2D, CopyKind.D2H, CopyKind.D2D],
        CopyKind.P2P,
    ).astype(np.int32)
    name = names.indices(_COPY_NAMES[CopyKind(k)] for k in kind.tolist())
    device = np.where(from_gpu[keep], source, target)
    return _part(recording, raw, Activity.MEMCPY, name, device=device, bytes=raw["size"], copy_kind=kind)


def _part(
    recording: Recording,
    raw: dict[str, I64],
    activity: Activity,
    name: AnyColumn,
    device: I64,
    **more: AnyColumn,
) -> Columns:
    n = len(name)
    call = recording.events.of(raw["event_id"], "stack_id")
    return {
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "device": device_numbers(device),
        "stream": _stream(raw),
        "correlation": np.where(call > 0, call, -1),
        "process": recording.pids(raw["pid"]),
        "name": name,
        "activity": constant(activity, n, np.uint8),
        "bytes": unknown(n),
        "copy_kind": constant(-1, n, np.int32),
        "host_memory": constant(0, n, np.uint8),
        **more,
    }


def _stream(raw: dict[str, I64]) -> I64:
    """The HIP stream; where none but the default one was recorded, the hardware queue."""
    return raw["stream_id"] if (raw["stream_id"] > 0).any() else raw["queue_id"]
