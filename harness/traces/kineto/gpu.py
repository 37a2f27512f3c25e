"""Gathered records of a GPU to events, with the calls that launched them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import constant, launches
from harness.traces.kineto.gather import Gathered
from harness.traces.trace import I32, I64, Activity, Calls, CopyKind, Events, HostMemory

_DIRECTIONS = (
    ("HtoD", CopyKind.H2D),
    ("DtoH", CopyKind.D2H),
    ("DtoD", CopyKind.D2D),
    ("PtoP", CopyKind.P2P),
)
_MEMORY = (
    ("Pageable", HostMemory.PAGEABLE),
    ("Pinned", HostMemory.PINNED),
    ("Managed", HostMemory.MANAGED),
)


def device_events(gathered: Gathered, calls: Calls) -> Events:
    """All work on GPUs, in the file's order."""
    columns = gathered.device.joined()
    name, activity = columns["name"], columns["activity"]
    process = constant(gathered.pid, len(name))
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
