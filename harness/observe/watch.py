"""What the observer does at each step of a rank: metrics, marks, the profiled window, the sampled lines.

A process that never trains (a launcher, a worker that loads data) writes nothing: all begins at its first phase.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import multiprocessing
import multiprocessing.util
import os
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harness.common.run_folder.metrics_lines import StartLine, StepLine
from harness.common.run_folder.profile_window import MEMORY, MEMORY_STEPS, ProfileWindow, as_recorded
from harness.common.run_folder.run_files import METRICS
from harness.common.system.files import write_whole
from harness.observe import heartbeat
from harness.observe.capture import Capture, copy_compressed, making_ours, open_capture, trace_file
from harness.observe.heartbeat import PROGRESS
from harness.observe.job_time import sampler_of_rank
from harness.observe.last_words import on_termination
from harness.observe.lines import LineSampler, MemoryPeak
from harness.observe.memory_use import memory_now
from harness.observe.metrics import MetricsWriter, backend_name, peak_memory_bytes
from harness.observe.ranges import Mark, records
from harness.observe.same_rank import process_line, task_variables, told
from harness.observe.steps import BACKWARD, DATA, EVALUATION, FORWARD, OPTIMIZER, StepDurations

if TYPE_CHECKING:
    from harness.observe.memory_record import MemoryRecord

LEFT_ALONE = "the script records with torch.profiler itself, so nothing else is recorded; its traces are the run's"
MARKS = {  # as exercise 1 writes them; {}: the step's number
    DATA: "DataLoad batch {}",
    FORWARD: "forward",
    EVALUATION: "evaluation",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer_step",
}


def rank_now() -> tuple[int, int, int]:
    """(rank, world size, local rank), of the process group if there is one, else as the launcher set them."""
    local = _number("LOCAL_RANK", _number(task_variables()[2], 0))
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), local
    return _number("RANK", _number("NODE_RANK", 0)), _number("WORLD_SIZE", 1), local


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


class TakenError(RuntimeError):
    """Another process of the job writes as this rank already: a sentence on both, or nothing to be said."""


def _takes_over(metrics: Path) -> bool:
    """Whether this process takes the place of the one that wrote this file, as when a launcher starts the ranks again:
    that one has failed, or is no more. One that ended well stays, unless torchrun starts all of its ranks again."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    lines = metrics.read_text(encoding="utf-8").splitlines()
    try:
        first, last = json.loads(lines[0]), json.loads(lines[-1])
    except (ValueError, IndexError):  # it has just begun, or was cut off
        return again
    if last["event"] == "end":
        return again or last["status"] != "completed"
    return not Path(f"/proc/{first['pid']}").exists() if first["host"] == socket.gethostname() else again


class Watch:
    """One rank, from its first phase to its end. `model`: the module with most parameters, where one is known."""

    def __init__(self, run_dir: Path, arguments: dict[str, Any]) -> None:
        self._run_dir, self._arguments = run_dir, arguments
        window = ProfileWindow(**arguments["window"])
        if arguments.get("memory"):
            window = replace(window, skip=max(window.skip, MEMORY_STEPS))
        self._window = as_recorded(window, os.environ)
        self._marks: list[Mark | None] = []  # None: nobody records
        self._for_nsys = arguments["profiler"] == "nsys"
        self._number = 0
        self._moments: Any = None  # of injected faults
        self.ours: Callable[[], AbstractContextManager[None]] = nullcontext
        self._writer: MetricsWriter | None = None
        self._capture: Capture = Capture()
        self._sampler: LineSampler | None = None
        self._memory: MemoryRecord | None = None
        self._peak: MemoryPeak | None = None
        self._phase = ""
        self._owner = os.getpid()
        self.model: torch.nn.Module | None = None
        self.loss: float | None = None
        self.samples: int | None = None
        self.tokens: int | None = None
        self.own_profiler = False  # the script records with torch.profiler itself
        self.steps_ended_by: str | None = None
        self.notes: list[str] = []
        self.rank = -1  # -2: it has ended, or is a fork of the rank
        self.last_step: Callable[[], None] = lambda: None  # ends the step that is not known to be over

    # -- as steps.py tells ---------------------------------------------------------------------------------------------

    def step_begins(self, number: int) -> None:
        if self.rank < 0:
            self._begin(is_sure=number > 0)
        if self._sampler is not None:
            is_recorded = self._arguments["profiler"] != "none" and self._window.start <= number < self._window.end
            self._sampler.in_step(is_recorded)
        self._capture.step_begins(number)
        if self._memory is not None:
            self._memory.step_begins(number)
        self._number = number
        PROGRESS.begins(number)
        self._mark("batch_{}")
        if self._moments is not None:
            self._moments.begin()

    def phase_begins(self, phase: str) -> None:
        PROGRESS.enters(phase)
        self._phase = phase
        if self._memory is not None:
            self._memory.phase_begins(phase, MARKS[phase])
        self._mark(MARKS[phase])
        if phase != DATA:
            self.reach(phase)

    def phase_ends(self) -> None:
        PROGRESS.enters(None)
        if self._memory is not None:
            self._memory.phase_ends(self._phase)
        self._end_mark()

    def step_ends(self, step_durations: StepDurations) -> None:
        while self._marks:
            self._end_mark()
        self.reach("updated")
        if self._writer is not None:
            values: dict[str, Any] = {"loss": self.loss, "samples": self.samples, "tokens": self.tokens}
            values["peak_memory_bytes"] = peak_memory_bytes()
            disturbs = self._memory is not None and self._memory.disturbs
            values["phase"] = MEMORY if disturbs else self._window.phase(step_durations.number)
            self._writer.defer(partial(_step_line, step_durations, values))
        number, unix_ns, ns = step_durations.number, step_durations.unix_ns, step_durations.ns
        counted = (step_durations.parts.get(OPTIMIZER, 0), self.samples or 0, self.tokens or 0)
        PROGRESS.ends(heartbeat.EndedStep(number, unix_ns, ns, *counted), self.loss)
        self.loss = self.samples = self.tokens = None
        self._capture.step_ends(step_durations.number)

    def reach(self, moment: str) -> None:
        """Let the injected faults act that wait for this moment of a step."""
        if self._moments is not None:
            self._moments.reach(moment)

    def write_pending(self) -> None:
        """Write the steps that have ended."""
        if self._writer is not None and self.rank >= 0 and os.getpid() == self._owner:
            self._writer.write_pending()
            if self._sampler is not None and self._sampler.peak.highest is not self._peak:
                self._peak = self._sampler.peak.highest
                self._writer.memory_peak(self._peak.size, self._peak.line)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _mark(self, name: str) -> None:
        self._marks.append(Mark(name.format(self._number)) if records(self._for_nsys) else None)

    def _end_mark(self) -> None:
        mark = self._marks.pop()
        if mark is not None:
            mark.end()

    # -- beginning and end ---------------------------------------------------------------------------------------------

    def _begin(self, is_sure: bool) -> None:
        """is_sure: it has trained, so a process group that it has not made by now joins it with no other process."""
        rank, world, local = rank_now()
        run_dir = self._run_dir
        path = METRICS.path(run_dir, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(process_line())
        except FileExistsError:
            if not _takes_over(path):
                if is_sure:
                    raise TakenError(told(run_dir, rank, path, has_met=world > 1)) from None
                return
            path.write_text(process_line(), encoding="utf-8")
            trace_file(run_dir, rank).unlink(missing_ok=True)
        self.rank, self._owner = rank, os.getpid()
        heartbeat.begin(rank, world, local)
        atexit.register(self.close)
        if multiprocessing.process.parent_process() is not None:  # such a child ends without atexit
            multiprocessing.util.Finalize(None, self.close, exitpriority=100)
        now = lambda: (PROGRESS.step, PROGRESS.phase)  # noqa: E731
        self._sampler = sampler_of_rank(run_dir, rank, now, self.write_pending, memory_now())
        self._writer = MetricsWriter(run_dir, self._start(rank, world, local))
        self._capture = (
            Capture() if self.own_profiler else open_capture(self._arguments["profiler"], self._window, run_dir, rank)
        )
        if self._arguments.get("memory"):
            with self.ours():
                module = importlib.import_module("harness.observe.memory_record")
                self._memory = module.MemoryRecord(run_dir, rank)
        if self._arguments.get("faults"):
            with self.ours():
                module = importlib.import_module("exercises.utils.faults.inject")
                self._moments = module.begin(run_dir, rank, self.model, self._arguments["faults"])
        on_termination(partial(self.close, "SIGTERM"))

    def _start(self, rank: int, world: int, local: int) -> StartLine:
        parameters = [] if self.model is None else list(self.model.parameters())
        first = parameters[0] if parameters else None
        return StartLine(
            rank=rank,
            world_size=world,
            local_rank=local,
            backend=backend_name(),
            device="cuda" if torch.cuda.is_initialized() else "cpu",  # type: ignore[no-untyped-call]
            model=None if self.model is None else type(inner_model(self.model)).__name__,
            parameters=sum(each.numel() for each in parameters) if parameters else None,
            weights=None,
            dtype=None if first is None else str(first.dtype).replace("torch.", ""),
            seq_length=None,
            micro_batch_size=self.samples,
            gradient_accumulation_steps=None,
            flops_per_token=None,
            peak_flops_per_s=None,
            window=self._window,
            trained_parameters=None,
        )

    @property
    def trace_file(self) -> Path:
        """Where this rank's trace by torch.profiler is kept."""
        return trace_file(self._run_dir, self.rank)

    def leave_alone(self) -> None:
        """The script records itself: nothing else does from now on."""
        if self._arguments["profiler"] == "torch" and not self.own_profiler:
            self._capture.close()
            self._capture = Capture()
            self.trace_file.unlink(missing_ok=True)  # the script's takes its place
            self.own_profiler = True
            self.notes.append(LEFT_ALONE)
            print(f"observer: {LEFT_ALONE}", file=sys.stderr)

    def close(self, stopped_by: str | None = None) -> None:
        """The process ends, or the observer switches itself off: write what there is. stopped_by: a signal's name."""
        if self.rank < 0 or os.getpid() != self._owner:
            return
        with suppress(Exception):  # the end of somebody's training: nothing here may change it
            self.last_step()
            while self._marks:
                self._end_mark()
            self._capture.close()
            if self._memory is not None:
                self._memory.close()
        self.rank = -2
        heartbeat.over()
        if self._sampler is not None:
            # Where Python calls what was registered for its end, that closes it: what else is called is recorded.
            is_last = stopped_by is not None or multiprocessing.process.parent_process() is not None
            (self._sampler.close if is_last else self._sampler.end_lines)()
        if self._writer is not None:
            self._writer.observed(self.steps_ended_by, self.notes)
            if stopped_by is not None:
                self._writer.stopped(stopped_by)
            error: BaseException | None = getattr(sys, "last_value", None)  # what ended the script, if anything did
            self._writer.__exit__(type(error), error, None)


def _step_line(step_durations: StepDurations, values: dict[str, Any]) -> StepLine:
    """values: what is recorded of a step beside its times."""
    return StepLine(
        step=step_durations.number,
        unix_ns=step_durations.unix_ns,
        step_ns=step_durations.ns,
        data_ns=step_durations.parts.get(DATA, 0),
        forward_ns=step_durations.parts.get(FORWARD, 0),
        backward_ns=step_durations.parts.get(BACKWARD, 0),
        optimizer_ns=step_durations.parts.get(OPTIMIZER, 0),
        evaluation_ns=step_durations.parts.get(EVALUATION, 0),
        lr=None,
        synced=True,
        **values,
    )


def inner_model(model: torch.nn.Module) -> torch.nn.Module:
    """The user's model inside DDP and other wrappers of one module."""
    while isinstance(inside := getattr(model, "module", None), torch.nn.Module):
        model = inside
    return model


def watch_own_profiler(watch: Watch) -> None:
    """Notice a profiler of the script's: two recordings at once are an error. Its first trace is kept as the run's."""
    profiler: Any = torch.profiler.profiler._KinetoProfile
    make, export = profiler.__init__, profiler.export_chrome_trace

    @functools.wraps(make)
    def made(own: Any, *arguments: Any, **named: Any) -> None:
        if not making_ours:
            watch.leave_alone()
        make(own, *arguments, **named)

    @functools.wraps(export)
    def exported(own: Any, path: Any, *arguments: Any, **named: Any) -> Any:
        result = export(own, path, *arguments, **named)
        if watch.own_profiler and watch.rank >= 0:
            _keep(Path(os.fspath(path)), watch.trace_file)
        return result

    profiler.__init__ = made
    profiler.export_chrome_trace = exported


def _keep(file: Path, target: Path) -> None:
    """A copy, compressed if it is not. The first one stays."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, partial(shutil.copyfile if file.suffix == ".gz" else copy_compressed, file))
