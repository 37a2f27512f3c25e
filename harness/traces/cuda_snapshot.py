"""PyTorch's own snapshot of the memory of GPUs: what `torch.cuda.memory._dump_snapshot` writes, as lists of blocks and
events with the user's line of each. Of the plain data only the fixed shape is looked at. Must not know what it is for.

Format: torch/csrc/cuda/memory_snapshot.cpp; older files as torch/cuda/_memory_viz.py reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from harness.common.display.printable import printable_name
from harness.traces.plain_pickle import UnfitError
from harness.traces.python_functions import Owner, owner_of

ACTIVE, PENDING = "active_allocated", "active_pending_free"
_MOST_FRAMES = 1000  # of one stack that are looked at
_MOST = 1 << 64  # bytes, addresses and microseconds are below it
_NOTEBOOK = ("<ipython-input-", "<stdin>", "/ipykernel_")
_TORCH = re.compile(r"(?:^|/)torch/(?:_|amp/|autograd/|cuda/|distributed/|functional\.py|nn/|optim/|utils/)")
_KINDS: dict[type, str] = {int: "a whole number from 0 to 2^64", str: "a text", list: "a list"}
_Record = dict[Any, Any]
_Kind = TypeVar("_Kind")


class CodeLine(NamedTuple):
    """A line of a program on the machine of the recording."""

    file: str
    line: int
    function: str


class Block(NamedTuple):
    """A part of the reserved memory. requested_bytes: without what the allocator rounded up; 0 if it is free."""

    address: int
    size_bytes: int
    requested_bytes: int
    state: str
    line: CodeLine | None


class AllocatorEvent(NamedTuple):
    """What the allocator did. size_bytes: as requested. device_free_bytes: what CUDA had left, of `oom` only."""

    action: str
    address: int
    size_bytes: int
    device_free_bytes: int
    time_us: int
    line: CodeLine | None


class DeviceSnapshot(NamedTuple):
    """A device's memory at the end, and the events that were recorded before, oldest first."""

    device: int
    blocks: list[Block]
    events: list[AllocatorEvent]


def cuda_snapshot(data: object, file_bytes: int) -> list[DeviceSnapshot]:
    """The devices that have memory or events, of the content of a file of this size.

    Raises UnfitError: it is something else, or damaged.
    """
    content = {"segments": data} if isinstance(data, list) else data  # as torch.cuda.memory_snapshot() gives it
    if not isinstance(content, dict) or "segments" not in content:
        raise UnfitError("is a pickle, but not a memory snapshot of PyTorch: it has no `segments`")
    segments = _dicts(content, "segments")
    traces = [{"device_traces": each} for each in _get(content, "device_traces", list, [])]
    records = [(segment, "blocks") for segment in segments] + [(trace, "device_traces") for trace in traces]
    if sum(len(_get(record, name, list, [])) for record, name in records) > file_bytes:
        raise UnfitError("is damaged: it names the same blocks again and again, more than its file has bytes")
    lines, devices = _Lines(), dict[int, DeviceSnapshot]()
    for segment in segments:
        device = _get(segment, "device", int, 0)
        devices.setdefault(device, DeviceSnapshot(device, [], [])).blocks.extend(_blocks(segment, lines))
    for device, trace in enumerate(traces):
        if events := [_event(entry, lines) for entry in _dicts(trace, "device_traces")]:
            devices.setdefault(device, DeviceSnapshot(device, [], [])).events.extend(events)
    return [devices[device] for device in sorted(devices)]


def _blocks(segment: _Record, lines: _Lines) -> Iterator[Block]:
    address = _get(segment, "address", int, 0)
    for block in _dicts(segment, "blocks"):
        history = _dicts(block, "history")[:1]  # of PyTorch 2.0: of what was ever there, the newest first
        state, size = _get(block, "state", str), _get(block, "size", int)
        address = _get(block, "address", int, address)
        if state.startswith("active"):
            state = state if state == ACTIVE else PENDING  # the documented name is another than the written one
            named = _get(block, "requested_size", int, size)
            requested = _get(history[0], "real_size", int, named) if history else named
            yield Block(address, size, requested, state, lines.of(history[0] if history else block))
        else:
            yield Block(address, size, 0, state, None)
        address += size


def _event(entry: _Record, lines: _Lines) -> AllocatorEvent:
    action = _get(entry, "action", str)
    address, size, device_free, time_us = (
        _get(entry, key, int, 0) for key in ("addr", "size", "device_free", "time_us")
    )
    line = lines.of(entry) if action in ("alloc", "oom") else None
    return AllocatorEvent(action, address, size, device_free, time_us, line)


def _get(record: _Record, name: str, kind: type[_Kind], missing: object = None) -> _Kind:
    """A value of the record. Raises UnfitError: it is not of this kind, or a number that no machine can have."""
    found = record.get(name, missing)
    if type(found) is not kind or (isinstance(found, int) and not 0 <= found < _MOST):
        raise UnfitError(f"is damaged: `{name}` is not {_KINDS[kind]}")
    return found


def _dicts(record: _Record, name: str) -> list[_Record]:
    found = _get(record, name, list, [])
    if not all(isinstance(each, dict) for each in found):
        raise UnfitError(f"is damaged: `{name}` is not a list of dicts")
    return found


class _Lines:
    """The user's line of each stack. Events share their stacks: each is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, CodeLine | None] = {}

    def of(self, record: _Record) -> CodeLine | None:
        """The innermost line that is the user's, else a framework's, else any of Python; None: no stack."""
        frames = record.get("frames")
        if not isinstance(frames, list):
            return None
        if id(frames) not in self._known:  # no other gets its number: the snapshot holds it
            found = filter(None, map(_line, frames[:_MOST_FRAMES]))
            # Of lines of one owner the first, which is the innermost.
            self._known[id(frames)] = min(found, key=lambda line: _owner(line.file), default=None)
        return self._known[id(frames)]


def _line(frame: object) -> CodeLine | None:
    """None: not of Python, as C++, which some line of Python called."""
    file, line, name = map(frame.get, ("filename", "line", "name")) if isinstance(frame, dict) else (None,) * 3
    if not (isinstance(file, str) and isinstance(name, str) and type(line) is int and 0 <= line < 1 << 31):
        return None
    is_python = file.endswith(".py") or any(part in file for part in _NOTEBOOK)
    return CodeLine(_shown(file), line, _shown(name)) if is_python else None


@lru_cache(maxsize=1 << 16)
def _owner(file: str) -> Owner:
    return Owner.LIBRARY if _TORCH.search(file) else owner_of(file.replace("\\", "/"))


_shown = lru_cache(maxsize=1 << 16)(printable_name)
