"""With `--memory`: what a rank's tensors hold in a few steps and in the first evaluations, and what it keeps from step
to step, as files of the run. Of a process that loads data, what that keeps.

The time of a step in which something of this works does not count.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils.data._utils.fetch as fetching

from harness.common.run_folder.profile_window import MEMORY_STEPS
from harness.common.run_folder.run_files import KEPT_VALUES
from harness.common.system.files import write_whole_text
from harness.observe.allocated_objects import AllocatedObjects
from harness.observe.kept_values import LEAST_BYTES, KeptValues
from harness.observe.lines import SourceLine
from harness.observe.memory_tracker import Snapshot
from harness.observe.steps import EVALUATION

VERSION = 1
FIRST, END = 2, 8  # the steps whose tensors are followed
OBJECTS = (
    9,
    12,
    MEMORY_STEPS,
)  # when Python's allocations are followed from, noted, and counted: no look takes place then
EVALUATIONS = 2  # whose tensors are followed, too
_MOST_LINES = 8


class MemoryRecord:
    """One rank's."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        device = "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
        self._run_dir, self._rank = run_dir, rank
        self._snapshot = Snapshot(run_dir, rank, device)
        self._kept = KeptValues()
        self._objects = AllocatedObjects()
        self._tensors: dict[SourceLine | None, int] = {}
        self._number = self._evaluations = 0
        self.disturbs = False  # the step that is open

    def step_begins(self, number: int) -> None:
        self._number = number
        self.disturbs = self._kept.step_begins(number)
        if number == FIRST:
            self._snapshot.resume()
        elif number == END:
            self._snapshot.pause()
            self._tensors = self._snapshot.kept_by_line(range(FIRST + 1, END - 2))
        elif number in OBJECTS:
            self._objects.at(OBJECTS.index(number), OBJECTS[2] - OBJECTS[1])
        self._snapshot.step_begins(number)
        self.disturbs |= self._snapshot.on or self._objects.on
        if number in self._kept.looked:
            self._write()

    def phase_begins(self, phase: str, name: str) -> None:
        if phase == EVALUATION and self._evaluations < EVALUATIONS and not self._snapshot.on:
            self._evaluations += 1
            self._snapshot.resume()
            self.disturbs = True
        if self._snapshot.on:
            self._snapshot.range_begins(name)

    def phase_ends(self, phase: str) -> None:
        if self._snapshot.on:
            self._snapshot.range_ends()
            if phase == EVALUATION and not FIRST <= self._number < END:
                self._snapshot.pause()

    def close(self) -> None:
        self._kept.close()
        self._snapshot.pause()
        self._objects.close()
        self._write()

    def _write(self) -> None:
        lines = {"tensors": _lines(self._tensors), "objects": _lines(self._objects.by_line)}
        _write_kept(self._run_dir, f"rank{self._rank}", self._kept, rank=self._rank, **lines)


class WorkerRecord:
    """Of one process that loads data for a rank; its steps are the batches that it loads."""

    def __init__(self, run_dir: Path, rank: int, worker: int) -> None:
        self._run_dir, self._rank, self._worker = run_dir, rank, worker
        self._kept = KeptValues()
        self._batches = self._lines = 0

    def batch_begins(self) -> None:
        self._kept.step_begins(self._batches)
        self._batches += 1
        found = sum(sum(one.lines.values()) for one in self._kept.growing)
        if self._batches - 1 in self._kept.looked or found != self._lines:
            self._lines = found
            name = f"rank{self._rank}-worker{self._worker}"
            _write_kept(self._run_dir, name, self._kept, rank=self._rank, worker=self._worker)


def watch_workers(run_dir: Path, rank: Callable[[], int]) -> None:
    """From here on, in processes that load data, what they keep is recorded. rank: of the process that makes them."""
    records: dict[int, WorkerRecord] = {}

    def observed(fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def fetches(own: Any, indices: Any) -> Any:
            info = torch.utils.data.get_worker_info()
            if info is not None:
                try:
                    made = records.get(os.getpid()) or WorkerRecord(run_dir, rank(), info.id)
                    records[os.getpid()] = made
                    made.batch_begins()
                except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
                    print(f"observer: not recorded what a worker keeps, because {error!r}", file=sys.stderr)
            return fetch(own, indices)

        return fetches

    for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):
        kind.fetch = observed(kind.fetch)  # type: ignore[method-assign]


def _lines(sizes: Mapping[SourceLine | None, int]) -> list[dict[str, Any]]:
    largest = sorted(((size, line) for line, size in sizes.items() if line is not None), reverse=True)[:_MOST_LINES]
    return [{"where": list(line), "bytes_per_step": size} for size, line in largest if size >= LEAST_BYTES]


def _write_kept(run_dir: Path, name: str, kept: KeptValues, **more: Any) -> None:
    path = KEPT_VALUES.path(run_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = [one.as_json() for one in kept.growing if one.bytes_per_step or one.lines]
    document = {"version": VERSION, "looked": kept.looked, "growing": growing, **more}
    write_whole_text(path, json.dumps(document, separators=(",", ":")) + "\n")
