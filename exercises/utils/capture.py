"""The capture that a training script's arguments ask for, with the record of who held its memory."""

from __future__ import annotations

from contextlib import ExitStack

from exercises.utils.arguments import TrainingArguments
from harness.observe import capture
from harness.observe.capture import Capture
from harness.observe.heartbeat import PROGRESS
from harness.observe.job_time import sampler_of_rank
from harness.observe.memory_tracker import Snapshot
from harness.observe.module_ranges import ModuleRanges

__all__ = ["Capture", "open_capture"]


class _LineCapture(Capture):
    """The profiler's capture; which line of the training's code the main thread is in, sampled in every step; and where
    it is asked for, who held the memory from the first step on.

    Code that injects a fault is passed over: the line is the one that it slows. The record of the memory slows the
    steps and stands in traces, so it ends before the profiled steps where two optimizer steps come before them: what
    later steps hold is the same. Otherwise it ends with them.
    """

    def __init__(self, profiler: Capture, arguments: TrainingArguments, rank: int) -> None:
        self._profiler, self._window = profiler, arguments.window
        self._run_dir, self._rank = arguments.run_dir, rank
        self._is_recorded = arguments.profiler != "none"
        self._module_ranges, self._for_nsys = arguments.module_ranges, arguments.profiler == "nsys"
        early = self._window.start >= 2 * arguments.gradient_accumulation_steps
        device = "cpu" if arguments.on_cpu else "cuda"
        self._memory_end = self._window.start if early else self._window.end
        self._memory = Snapshot(self._run_dir, rank, device, not early) if arguments.memory_snapshot else None
        self._until = ExitStack()

    def step_begins(self, step: int) -> None:
        self._sampler.in_step(self._is_recorded and self._window.start <= step < self._window.end)
        self._profiler.step_begins(step)
        if self._memory is not None:
            self._memory.step_begins(step)

    def step_ends(self, step: int) -> None:
        if self._memory is not None and step == self._memory_end - 1:
            self._memory.pause()
        self._profiler.step_ends(step)

    def abandon(self) -> None:
        self._profiler.abandon()

    def __enter__(self) -> Capture:
        self._sampler = sampler_of_rank(self._run_dir, self._rank, lambda: (PROGRESS.step, PROGRESS.phase))
        self._until.callback(self._sampler.end_lines)
        if self._module_ranges is not None:
            ranges = ModuleRanges(self._module_ranges, self._for_nsys)
            self._until.callback(ranges.close)
        self._until.enter_context(self._profiler)
        if self._memory is not None:
            self._until.enter_context(self._memory)
        return self

    def __exit__(self, *error: object) -> None:
        self._until.close()


def open_capture(arguments: TrainingArguments, rank: int) -> Capture:
    """The capture for `--profiler nsys|torch|none` and `--memory-snapshot`; use it as a context manager."""
    lead = arguments.gradient_accumulation_steps
    profiler = capture.open_capture(arguments.profiler, arguments.window, arguments.run_dir, rank, lead=lead)
    return _LineCapture(profiler, arguments, rank)
