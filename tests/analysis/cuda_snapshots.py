"""An allocator as PyTorch's, in Python: its log and its state as `torch.cuda.memory._snapshot()` gives them. No GPU is
here, so this is the format as PyTorch's source has it, not a recording."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

MB = 1 << 20
BASE = 0x7F0000000000
Frame = dict[str, Any]
TORCH: Frame = {
    "filename": "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py",
    "line": 9,
    "name": "linear",
}
CPP: Frame = {"filename": "/pytorch/c10/cuda/CUDACachingAllocator.cpp", "line": 0, "name": "malloc"}
PYTHON: Frame = {"filename": "/usr/lib/python3.11/threading.py", "line": 5, "name": "run"}


def stack(line: int, name: str = "forward", file: str = "/home/ann/job/model.py") -> list[Frame]:
    """The innermost frame first, as PyTorch gives them: the user's is between others."""
    main = {"filename": "/home/ann/job/train.py", "line": 1, "name": "main"}
    return [CPP, TORCH, {"filename": file, "line": line, "name": name}, main, PYTHON]


class Allocator:
    """One segment for each block, or those that `segment` makes; `free` leaves the memory reserved."""

    def __init__(self, device: int = 0) -> None:
        self.device, self.time_us, self._next = device, 0, BASE
        self.events: list[dict[str, Any]] = []
        self.segments: dict[int, int] = {}
        self.blocks: dict[int, dict[str, Any]] = {}

    def note(self, action: str, **what: Any) -> None:
        self.time_us += 1000
        self.events.append({"action": action, "stream": 0, "time_us": self.time_us, **what})

    def segment(self, size: int) -> int:
        address = self._next
        self._next += size + MB
        self.segments[address] = size
        self.note("segment_alloc", addr=address, size=size, frames=[])
        return address

    def alloc(self, size: int, line: int, address: int | None = None) -> int:
        """At an address, or in a segment of its own."""
        rounded = -(-size // 512) * 512
        address = self.segment(rounded) if address is None else address
        self.note("alloc", addr=address, size=size, frames=stack(line))
        self.blocks[address] = {"size": rounded, "requested_size": size, "frames": stack(line)}
        return address

    def free(self, address: int) -> None:
        size = self.blocks.pop(address)["requested_size"]
        self.note("free_requested", addr=address, size=size, frames=stack(99, "step"))
        self.note("free_completed", addr=address, size=size, frames=stack(99, "step"))

    def oom(self, size: int, device_free: int, line: int) -> None:
        self.note("oom", size=size, device_free=device_free, frames=stack(line))

    def snapshot(self, history: bool = True) -> dict[str, Any]:
        """As PyTorch has it; without history as if nothing was recorded."""
        segments = [self._segment(address, size, history) for address, size in self.segments.items()]
        traces: list[list[Any]] = [[] for _ in range(self.device + 1)]
        traces[self.device] = self.events if history else []
        return {"segments": segments, "device_traces": traces, "allocator_settings": {"expandable_segments": False}}

    def _segment(self, start: int, size: int, history: bool) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        at = start
        for address in sorted(each for each in self.blocks if start <= each < start + size):
            block = self.blocks[address]
            if address > at:
                blocks.append(
                    {"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []}
                )
            frames = block["frames"] if history else []
            blocks.append({**block, "address": address, "state": "active_allocated", "frames": frames})
            at = address + block["size"]
        if at < start + size:
            blocks.append({"address": at, "size": start + size - at, "state": "inactive", "frames": []})
        used = sum(block["size"] for block in blocks if block["state"] != "inactive")
        return {
            "device": self.device, "address": start, "total_size": size, "allocated_size": used, "active_size": used,
            "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "frames": [], "blocks": blocks,
        }  # fmt: skip


def write_snapshot(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path
