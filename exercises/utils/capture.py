"""The capture that a training script's arguments ask for, with the record of who held its memory."""

from __future__ import annotations

from exercises.utils.arguments import TrainingArguments
from exercises.utils.memory_tracker import Snapshot
from harness.observe import capture
from harness.observe.capture import Capture
from harness.observe.lines import LineSampler

__all__ = ["Capture", "Lines", "MemorySnapshot", "open_capture"]


class Lines(Capture):
    """Another capture, and which line of the training's code the main thread is in, sampled in every step.

    Code that injects a fault is passed over: the line is the one that it slows.
    """

    def __init__(self, inner: Capture, arguments: TrainingArguments, rank: int) -> None:
        self._inner, self._window = inner, arguments.window
        self._run_dir, self._rank = arguments.run_dir, rank

    def step_begins(self, step: int) -> None:
        self._sampler.faster(self._window.start <= step < self._window.end)
        self._inner.step_begins(step)

    def step_ends(self, step: int) -> None:
        self._inner.step_ends(step)

    def __enter__(self) -> Capture:
        self._sampler = LineSampler(self._run_dir, self._rank)
        self._inner.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._inner.__exit__(kind, error, trace)
        self._sampler.close()


class MemorySnapshot(Capture):
    """Another capture, and who held the memory from the first step on.

    It slows the steps and stands in traces, so it ends before the profiled steps where two optimizer steps come before
    them: what later steps hold is the same. Otherwise it ends with them.
    """

    def __init__(self, inner: Capture, arguments: TrainingArguments, rank: int) -> None:
        window = arguments.window
        early = window.start >= 2 * arguments.gradient_accumulation_steps
        device = "cpu" if arguments.on_cpu else "cuda"
        self._inner, self._end = inner, window.start if early else window.end
        self._snapshot = Snapshot(arguments.run_dir, rank, device, in_profiled_steps=not early)

    def step_begins(self, step: int) -> None:
        self._inner.step_begins(step)
        self._snapshot.step_begins(step)

    def step_ends(self, step: int) -> None:
        if step == self._end - 1:
            self._snapshot.finish()
        self._inner.step_ends(step)

    def __enter__(self) -> Capture:
        self._inner.__enter__()
        self._snapshot.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._snapshot.__exit__(kind, error, trace)
        self._inner.__exit__(kind, error, trace)


def open_capture(arguments: TrainingArguments, rank: int) -> Capture:
    """The capture for `--profiler nsys|torch|none` and `--memory-snapshot`; use it as a context manager."""
    profiler = capture.open_capture(
        arguments.profiler,
        arguments.window,
        arguments.run_dir,
        rank,
        lead=arguments.gradient_accumulation_steps,
        profile_memory=arguments.profile_memory,
    )
    watched = MemorySnapshot(profiler, arguments, rank) if arguments.memory_snapshot else profiler
    return Lines(watched, arguments, rank)
