"""Switches the profiler on and off around the profiled steps. Knows nothing of the content of a step."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from exercises.utils.arguments import TrainingArguments
from exercises.utils.meeting import meet
from exercises.utils.ranges import nvtx_functions
from harness.common.profile_window import WINDOW_RANGE, ProfileWindow


class Capture:
    """Switches a profiler with the window; this one records nothing.

    Call `step_begins` before and `step_ends` after each step, outside of every range that must be recorded whole.
    """

    def step_begins(self, step: int) -> None:
        """Step `step` is about to begin."""

    def step_ends(self, step: int) -> None:
        """Step `step` has ended."""

    def close(self) -> None:
        """Training has ended or failed: finish the recording."""

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NsysCapture(Capture):
    """Marks the window for nsys: with cudaProfilerStart and cudaProfilerStop, or without CUDA with an NVTX range.

    One nsys records all ranks of a node: the first rank that starts or stops it does so for all ranks. Under gradient
    accumulation the ranks can be many steps apart, so they meet there. A rank that is stopped early or fails does not
    wait for the others.
    """

    def __init__(self, window: ProfileWindow) -> None:
        self._window = window
        self._recording = False

    def step_begins(self, step: int) -> None:
        if step == self._window.start:
            _wait_for_the_device()  # kernels of earlier steps must not run into the window
            meet("before recording")
            _start_nsys()
            self._recording = True
            meet("recording")

    def step_ends(self, step: int) -> None:
        if step == self._window.end - 1:
            _wait_for_the_device()  # the window must have all kernels of the last step
            meet("recorded")
            self.close()

    def close(self) -> None:
        if self._recording:
            _wait_for_the_device()
            _stop_nsys()
            self._recording = False


def _wait_for_the_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _start_nsys() -> None:
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]
    else:
        nvtx_functions()[0](WINDOW_RANGE)


def _stop_nsys() -> None:
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]
    else:
        nvtx_functions()[1]()


class TorchCapture(Capture):
    """Records the window with torch.profiler into `<folder>/rank<R>.json.gz` (Kineto's format)."""

    def __init__(self, window: ProfileWindow, folder: Path, rank: int, profile_memory: bool = False) -> None:
        self._path = folder / f"rank{rank}.json.gz"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(
                skip_first=window.skip, wait=window.wait, warmup=window.warmup, active=window.active, repeat=1
            ),
            on_trace_ready=self._write,
            record_shapes=True,  # message sizes of collectives and precisions of GEMMs come from these
            profile_memory=profile_memory,
        )
        self._started = False

    def step_begins(self, step: int) -> None:
        if not self._started:
            self._profile.start()
            self._started = True

    def step_ends(self, step: int) -> None:
        self._profile.step()

    def close(self) -> None:
        if self._started:
            self._profile.stop()
            self._started = False

    def _write(self, profile: Any) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Readers look for rank*.json.gz: an unfinished file must not have that name.
        packed = self._path.with_name(f".unfinished-{self._path.name}")
        # Kineto writes the path of its file into the JSON without escapes: a quote in it would break the JSON.
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(plain))
            # PyTorch would compress line by line, which is slow; after SIGTERM only seconds may be left.
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, length=1 << 20)
        packed.replace(self._path)


def open_capture(arguments: TrainingArguments, rank: int) -> Capture:
    """The capture for `--profiler nsys|torch|none`; use it as a context manager."""
    if arguments.profiler == "nsys":
        return NsysCapture(arguments.window)
    if arguments.profiler == "torch":
        return TorchCapture(arguments.window, arguments.run_dir / "torch", rank, arguments.profile_memory)
    return Capture()
