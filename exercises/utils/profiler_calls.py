"""A script that says itself what is profiled, with PyTorch's calls for nsys: `torch.cuda.cudart().cudaProfilerStart()`
and `cudaProfilerStop()`, and `torch.cuda.nvtx.range_push(name)`, `range_pop()` and `range(name)`.

With CUDA they stay what they are, and nsys receives them. Here the same calls also start and stop torch.profiler, and
its trace gets the ranges. In a build of PyTorch without CUDA, where they are errors, they do that alone. A wrong call
is no error: it is counted, and said when the training is over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch

from exercises.utils.arguments import TrainingArguments
from exercises.utils.capture import Capture
from harness.common.errors import RequestError
from harness.common.run_folder.metrics_lines import StepLine
from harness.common.run_folder.profile_window import ClockWindow
from harness.observe.capture import CUDART, NsysRecording, TorchRecording, trace_file
from harness.observe.metrics import MetricsWriter, rank_of_process
from harness.observe.ranges import PYTORCH_NVTX, OpenRanges, ScriptNvtx, nvtx_functions, set_nvtx

START, STOP = "torch.cuda.cudart().cudaProfilerStart()", "torch.cuda.cudart().cudaProfilerStop()"
PUSH, POP = "torch.cuda.nvtx.range_push()", "torch.cuda.nvtx.range_pop()"
_PATIENCE = timedelta(seconds=5)  # for a rank that never calls, where nsys records several


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


class _Depth(int):
    """What range_push returns. Python's error for a number in a `with` does not say what works."""

    def __enter__(self) -> None:
        raise RequestError(
            "`with torch.cuda.nvtx.range_push(…):` does not work, because range_push returns a number: write "
            "`with torch.cuda.nvtx.range(…):`"
        )

    def __exit__(self, *error: object) -> None: ...


class _CountedRanges(OpenRanges):
    """Knows which ranges of a thread are open, and how many pops had none."""

    def __init__(self) -> None:
        super().__init__(*nvtx_functions())
        self.names: list[str] = []
        self.odd_pops = 0

    def push(self, name: str) -> _Depth:
        super().push(name)
        self.names.append(name)
        return _Depth(len(self.names) - 1)

    def pop(self) -> int:
        if not self.names:
            self.odd_pops += 1
            return -1
        super().pop()
        self.names.pop()
        return len(self.names)


class _Cudart:
    """CUDA's runtime, with the calls of its profiler passed to the harness."""

    def __init__(self, calls: ProfilerCalls) -> None:
        self.cudaProfilerStart, self.cudaProfilerStop = calls.start, calls.stop

    def __getattr__(self, name: str) -> Any:
        return getattr(CUDART(), name)  # type: ignore[no-untyped-call]


class ProfilerCalls:
    """As a context manager it receives the calls. Only the first recording counts, as for nsys."""

    def __init__(self, arguments: TrainingArguments, rank: int, writer: MetricsWriter) -> None:
        self._window, self._rank, self._writer = arguments.window, rank, writer
        self._recording = (
            TorchRecording(trace_file(arguments.run_dir, rank))
            if arguments.profiler == "torch"
            else NsysRecording("recording", _PATIENCE)
        )
        self._ranges = _CountedRanges()
        self._started_ns: int | None = None  # unix time
        self._stopped_ns: int | None = None
        self._odd_starts = self._odd_stops = 0

    def start(self) -> int:
        """Returns CUDA's number for success."""
        if self._started_ns is None:
            self._recording.begin()
            self._started_ns = time.time_ns()
        else:
            self._odd_starts += 1
        return 0

    def stop(self) -> int:
        """Returns CUDA's number for success."""
        if self._started_ns is not None and self._stopped_ns is None:
            self._stopped_ns = time.time_ns()
            self._recording.end(together=True)
        else:
            self._odd_stops += 1
        return 0

    def phase(self, step_line: StepLine) -> str:
        """`skip` before the recording, `active` or `after`; where nsys records by the clock, what that says."""
        if isinstance(self._window, ClockWindow):
            return step_line.phase
        if self._started_ns is None or step_line.unix_ns < self._started_ns:
            return "skip"
        return "active" if self._stopped_ns is None or step_line.unix_ns < self._stopped_ns else "after"

    def problems(self) -> list[str]:
        """A sentence, without its full stop, for each call that is missing or wrong."""
        return [*self._wrong_recording(), *self._wrong_ranges()]

    def _wrong_recording(self) -> Iterator[str]:
        if isinstance(self._window, ClockWindow):
            return
        if self._started_ns is None:
            yield f"the script never called {START}, so nothing was recorded"
            return
        once = "call it once, in an `if` that asks for the step"
        if self._stopped_ns is None:
            yield f"the script never called {STOP}, so the recording went on to the end of the training"
        if self._odd_starts:
            count = _times(self._odd_starts + 1)
            yield f"the script called {START} {count}, and only the first call counts: {once}"
        if self._odd_stops:
            yield f"the script called {STOP} {_times(self._odd_stops)} while nothing was recorded: {once}"

    def _wrong_ranges(self) -> Iterator[str]:
        if self._ranges.odd_pops:
            count = _times(self._ranges.odd_pops)
            why = f"a {PUSH} is missing, and ranges around it ended too early"
            yield f"the script called {POP} {count} while no range was open: {why}"
        if self._ranges.names:
            count = _times(len(self._ranges.names))
            why = "each push needs a pop after the code that it names, and without it ranges end too late"
            yield f"the script called {PUSH} {count} more than {POP}: {why}"

    def __enter__(self) -> ProfilerCalls:
        torch.cuda.cudart = lambda: _Cudart(self)
        set_nvtx(ScriptNvtx(self._ranges))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        torch.cuda.cudart = CUDART
        set_nvtx(PYTORCH_NVTX)
        self._recording.end(together=False)
        if error is None and (problems := self.problems()):
            self._writer.observed(None, problems)
            if self._rank == 0:
                print(*(f"profiler: {problem}" for problem in problems), sep="\n", file=sys.stderr, flush=True)


class StepWriter:
    """Writes the lines of a training's steps, with what the calls say of each."""

    def __init__(self, writer: MetricsWriter, capture: Capture, calls: ProfilerCalls, steps: int) -> None:
        self._writer, self._capture, self._calls, self._steps = writer, capture, calls, steps

    def step(self, record: StepLine) -> None:
        """A step has ended."""
        self._writer.step(replace(record, phase=self._calls.phase(record)))
        self._capture.step_ends(record.step)
        if record.step + 1 < self._steps:
            self._capture.step_begins(record.step + 1)


def by_calls(train: Callable[[Any, StepWriter], None]) -> Callable[[Any, MetricsWriter, Capture], None]:
    """The loop `train`, which says by its calls what is profiled, as a loop that a capture is told of."""

    def loop(training: Any, writer: MetricsWriter, capture: Capture) -> None:
        arguments: TrainingArguments = training.arguments
        capture.abandon()  # of the window
        capture.step_begins(0)
        with ProfilerCalls(arguments, rank_of_process()[0], writer) as calls:
            train(training, StepWriter(writer, capture, calls, arguments.total_steps))

    return loop
