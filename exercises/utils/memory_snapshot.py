"""--memory-snapshot: writes who held a rank's memory, step by step, at the peak, and when an allocation failed.

The file is plain JSON (harness/common/memory_snapshot.py), made here from the tracker's blocks: nobody has to read a
pickle, as PyTorch's own snapshots are.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from exercises.utils.memory_log import Block, moment, timeline
from exercises.utils.memory_tracker import MemoryTracker
from harness.common.memory_snapshot import CATEGORIES, MOST_STEPS, VERSION, memory_file
from harness.observe import ranges

# Of torch.cuda.memory_stats: what tensors have, what PyTorch took from CUDA, and what of split blocks lies idle.
_ALLOCATOR = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
}
_SHOWN = 5  # holders that an error message names


class Snapshot:
    """As a context manager it sees every tensor; `finish`, the end and a failed allocation write the file.

    in_profiled_steps: steps are recorded whose times count.
    """

    def __init__(self, run_dir: Path, rank: int, device: str, in_profiled_steps: bool = False) -> None:
        self._path = memory_file(run_dir, rank)
        self._rank, self._device, self._in_profiled_steps = rank, device, in_profiled_steps
        self._tracker = MemoryTracker(device, self._failed)
        self._steps: list[tuple[int, int]] = []
        self._failure: dict[str, Any] | None = None
        self._allocator: dict[str, int] | None = None
        self._done = False

    def step_begins(self, step: int) -> None:
        """Step `step` begins."""
        if len(self._steps) < MOST_STEPS and not self._done:
            self._steps.append((step, time.perf_counter_ns() - self._tracker.start_ns))
        self._tracker.step_begins(step)

    def finish(self) -> None:
        """Nothing further is recorded: write the file. Only the first call does."""
        if self._done:
            return
        self._tracker.label_owned()
        ranges.listeners.remove(self)
        self._tracker.__exit__()
        self._done = True
        self._write()

    def range_begins(self, name: str) -> None:
        self._tracker.range_begins(name)

    def range_ends(self) -> None:
        self._look_at_allocator()  # at the end of each part of a step, before what it held goes
        self._tracker.range_ends()

    def __enter__(self) -> Snapshot:
        ranges.listeners.append(self)
        self._tracker.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.finish()

    def _look_at_allocator(self) -> None:
        """Keep the GPU allocator's numbers of the moment when tensors have most."""
        if self._device != "cuda" or self._done:
            return
        stats = torch.cuda.memory_stats()
        found = {name: int(stats[key]) for name, key in _ALLOCATOR.items() if key in stats}
        best = self._allocator or {}
        if found.get("allocated_bytes", 0) > best.get("allocated_bytes", 0):
            self._allocator = found

    def _failed(self, error: BaseException) -> None:
        """An allocation failed: say who holds the memory now, and keep it; the training may still catch the error."""
        if self._done or self._failure is not None:
            return
        self._look_at_allocator()
        tracker, now_ns = self._tracker, time.perf_counter_ns()
        tracker.label_owned()
        tracker.cut_off()
        place = tracker.where._replace(operator=tracker.operator)
        self._failure = moment(tracker.blocks, now_ns, tracker.start_ns, place, tracker.step)
        self._failure["error"] = str(error).partition("\n")[0][:500]
        self._write()
        print(_words(self._rank, self._failure), file=sys.stderr, flush=True)

    def _write(self) -> None:
        tracker = self._tracker
        end_ns = time.perf_counter_ns()
        line = timeline(tracker.blocks, tracker.start_ns, end_ns)
        peak = None
        if line.peak is not None:
            block: Block = line.peak
            peak = moment(tracker.blocks, block.born_ns, tracker.start_ns, block.who, block.step)
        document = {
            "version": VERSION,
            "rank": self._rank,
            "device": self._device,
            "complete": not tracker.full,
            "in_profiled_steps": self._in_profiled_steps,
            "steps": [{"step": step, "start_ns": start_ns} for step, start_ns in self._steps],
            "times_ns": line.times_ns,
            "bytes": {name: line.totals[name] for name in CATEGORIES},
            "peak": peak,
            "failure": self._failure,
            "allocator": self._allocator_at_end(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".unfinished-{self._path.name}")
        unfinished.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        unfinished.replace(self._path)

    def _allocator_at_end(self) -> dict[str, int] | None:
        """The numbers of `_look_at_allocator` and the peak that the allocator itself saw; None without a GPU."""
        if self._allocator is None:
            return None
        return self._allocator | {"peak_allocated_bytes": torch.cuda.max_memory_allocated()}


def _words(rank: int, failure: dict[str, Any]) -> str:
    total = sum(failure["bytes"].values())
    parts = sorted(((size, name) for name, size in failure["bytes"].items() if size), reverse=True)
    lines = [
        f"rank {rank}: no memory for {failure['operator']} in {failure['module'] or failure['range'] or 'no range'}; "
        f"tensors hold {total / 1e6:,.1f} MB: "
        + ", ".join(f"{name} {size / 1e6:,.1f}" for size, name in parts)
    ]
    lines += [
        f"  {holder['bytes'] / 1e6:,.1f} MB {holder['category']}: "
        + " · ".join(filter(None, (holder["range"], holder["module"], holder["operator"])))
        for holder in failure["holders"][:_SHOWN]
    ]
    return "\n".join(lines)
