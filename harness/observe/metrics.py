"""The lines of a rank's metrics, and what its host thread lost while it trained: to other threads on its cores, to
Python's collector, to whoever stopped its process.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import re
import resource
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from harness.common.run_folder.metrics_lines import (
    EndLine,
    ObservedLine,
    OwnLine,
    RankProcess,
    StartLine,
    StepCounters,
    StepLine,
    as_ranges,
)
from harness.common.run_folder.profile_window import ProfileWindow
from harness.common.run_folder.run_files import METRICS
from harness.common.system.processes import memory_limit
from harness.observe.environment import EnvironmentRecorder
from harness.observe.heartbeat import PROGRESS, EndedStep, over
from harness.observe.lines import SourceLine
from harness.observe.memory_use import CountsBeside, OwnMemory, device_bytes

SCHEDULER = Path("/proc/thread-self/schedstat")  # time on a core, time ready and waiting for one, both in ns; slices
FILES = Path("/proc/self/io")  # is there if Linux counts what a process writes to files of a disk
BLOCK = 512  # bytes of a block that getrusage counts


class Counts(NamedTuple):
    """What was counted until a moment; None: the system does not say it. cores: those the thread may use."""

    waited_ns: int | None
    collected_ns: int
    written_bytes: int | None
    page_faults: int
    continued: int
    cores: AbstractSet[int] | None
    host_memory_bytes: int | None
    host_free_bytes: int | None
    device_memory_bytes: int | None


class HostCounters:
    """Counts from one step's end to the next one's, for the thread that makes it.

    `now` is called between two steps of somebody's training, so it only reads; `between` says what it means.
    """

    def __init__(self) -> None:
        self._scheduler, self._counts_files = _opened_scheduler(), FILES.exists()
        self._memory = OwnMemory()
        self._collected_ns = 0
        self._collecting_since = 0
        self._continued = 0
        gc.callbacks.append(self._collector)
        self._handled = _handle_continuing(self._count_continuing)

    def now(self) -> Counts:
        """All that was counted so far, for the thread that made this."""
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        used = resource.getrusage(resource.RUSAGE_SELF)
        written = used.ru_oublock * BLOCK if self._counts_files else None
        memory = self._memory.host_bytes(), self._memory.free_bytes(), device_bytes()
        waited = _waited(self._scheduler)
        return Counts(waited, self._collected_ns, written, used.ru_minflt, self._continued, cores, *memory)

    def between(self, then: Counts, latest: Counts) -> StepCounters:
        return StepCounters(
            core_wait_ns=_less(latest.waited_ns, then.waited_ns),
            collector_ns=latest.collected_ns - then.collected_ns,
            written_bytes=_less(latest.written_bytes, then.written_bytes),
            page_faults=latest.page_faults - then.page_faults,
            continued=latest.continued - then.continued if self._handled else None,
            cores=None if latest.cores is None else as_ranges(latest.cores),
            host_memory_bytes=latest.host_memory_bytes,
            host_free_bytes=latest.host_free_bytes,
            device_memory_bytes=latest.device_memory_bytes,
        )

    def close(self) -> None:
        gc.callbacks.remove(self._collector)
        self._memory.close()
        if self._scheduler is not None:
            os.close(self._scheduler)
        self._scheduler = None
        if self._handled:
            signal.signal(signal.SIGCONT, signal.SIG_DFL)

    def _count_continuing(self, signum: int, frame: object) -> None:
        self._continued += 1

    def _collector(self, phase: str, info: object) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collected_ns += now - self._collecting_since


def _handle_continuing(handler: Callable[[int, FrameType | None], None]) -> bool:
    """Whether SIGCONT, which continues a stopped process, calls `handler` from now on: nobody else may handle it."""
    free = signal.getsignal(signal.SIGCONT) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGCONT, handler)
    return True


def waited_ns() -> int | None:
    """How long the calling thread has waited for a core since it began; None if Linux does not count it."""
    file = _opened_scheduler()
    try:
        return _waited(file)
    finally:
        if file is not None:
            os.close(file)


def _less(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


def _opened_scheduler() -> int | None:
    """To be read again and again, by the thread that opened it; None if there is no such file."""
    try:
        return os.open(SCHEDULER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _waited(descriptor: int | None) -> int | None:
    """The time in an open SCHEDULER that its thread was ready and had no core; None: Linux does not count it."""
    try:
        return None if descriptor is None else int(os.pread(descriptor, 400, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return None


class StepTimer:
    """Times one step and its parts, which are `data`, `forward`, `backward`, `optimizer`, `evaluation`."""

    def __init__(self) -> None:
        self.unix_ns = time.time_ns()
        self._begin_ns = time.perf_counter_ns()
        self._parts_ns: dict[str, int] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time spent inside to part `name`."""
        begin_ns = time.perf_counter_ns()
        PROGRESS.enters(name)
        try:
            yield
        finally:
            PROGRESS.enters(None)
            spent_ns = time.perf_counter_ns() - begin_ns
            self._parts_ns[name] = self._parts_ns.get(name, 0) + spent_ns

    def part_ns(self, name: str) -> int:
        """Time in part `name` so far; 0 for a part that has not begun."""
        return self._parts_ns.get(name, 0)

    def finish(
        self, step: int, window: ProfileWindow, *, input_ids: Tensor, loss: float, lr: float, synced: bool
    ) -> StepLine:
        """The record of the step that ends now; `input_ids` is its batch, (examples, tokens)."""
        return StepLine(
            step=step,
            phase=window.phase(step),
            unix_ns=self.unix_ns,
            step_ns=time.perf_counter_ns() - self._begin_ns,
            data_ns=self.part_ns("data"),
            forward_ns=self.part_ns("forward"),
            backward_ns=self.part_ns("backward"),
            optimizer_ns=self.part_ns("optimizer"),
            evaluation_ns=self.part_ns("evaluation"),
            loss=loss,
            lr=lr,
            tokens=input_ids.numel(),
            samples=len(input_ids),
            synced=synced,
            peak_memory_bytes=peak_memory_bytes(),
        )


class JsonLines:
    """A file of JSON objects, one per line, to which lines are added."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, *lines: Mapping[str, object]) -> None:
        self._file.write("".join(json.dumps(line) + "\n" for line in lines))

    def close(self) -> None:
        self._file.close()


class MetricsWriter:
    """Appends lines to `metrics/rank<R>.jsonl`; as a context manager it also writes the `end` line."""

    def __init__(self, run_dir: Path, start_line: StartLine) -> None:
        self._lines = JsonLines(METRICS.path(run_dir, start_line.rank))
        self._rank = start_line.rank
        self._steps = 0
        self._closed = False
        self._stop_reason: str | None = None
        self._counters, self._beside = HostCounters(), CountsBeside()
        self._pending: deque[tuple[Callable[[], StepLine], Counts]] = deque()
        self._writes = threading.RLock()  # a signal's handler may write, too
        self._then = self._counters.now()
        self._write("start", {**asdict(start_line), **asdict(_process(start_line.device)), "unix_ns": time.time_ns()})
        self._environment = None
        if start_line.local_rank == 0:
            self._environment = record_environment(run_dir, on_cuda=start_line.device.startswith("cuda"))

    def step(self, step_line: StepLine) -> None:
        """Write one step of an exercise."""
        counted = (step_line.optimizer_ns, step_line.samples or 0, step_line.tokens or 0)
        PROGRESS.ends(EndedStep(step_line.step, step_line.unix_ns, step_line.step_ns, *counted), step_line.loss)
        self.defer(lambda: step_line)
        self.write_pending()

    def defer(self, make: Callable[[], StepLine]) -> None:
        """A step ends now: its counters are read; the next `write_pending`, of any thread, writes its line."""
        self._pending.append((make, self._counters.now()))

    def write_pending(self) -> None:
        with self._writes:
            if self._closed:  # the sampler's thread comes late
                return
            lines = []
            while self._pending:
                make, now = self._pending.popleft()
                then, self._then = self._then, now
                counted = self._counters.between(then, now)
                lines.append({"event": "step", "rank": self._rank, **vars(make()), **vars(counted)})
            if lines:
                lines[-1] |= self._beside.now()
            self._steps += len(lines)
            self._lines.write(*lines, *self._own())

    def _own(self) -> Iterator[dict[str, object]]:
        """A line of the own times that the heartbeats have found since the last one."""
        found = [PROGRESS.own_times.popleft() for _ in range(len(PROGRESS.own_times))]
        if found:
            steps, own_ns = map(list, zip(*found, strict=True))
            yield {"event": "own", **asdict(OwnLine(self._rank, steps, own_ns))}

    def stopped(self, reason: str) -> None:
        """Training stops early on request; the `end` line gives the reason."""
        self._stop_reason = reason

    def observed(self, steps_ended_by: str | None, notes: Sequence[str]) -> None:
        """How the observer found the steps, and what it could not do."""
        self._write("observed", asdict(ObservedLine(self._rank, steps_ended_by, list(notes))))

    def memory_peak(self, size: int, line: SourceLine | None) -> None:
        """The most memory so far at a look of the sampler's, and the user's line then."""
        self._write("peak", {"rank": self._rank, "bytes": size, "where": None if line is None else list(line)})

    def compiled(self, notes: Sequence[str]) -> None:
        """What torch.compile did, in sentences."""
        self._write("compiled", {"rank": self._rank, "notes": list(notes)})

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        status, reason = "completed", None
        if error is not None:
            status, reason = "failed", f"{type(error).__name__}: {error}".strip().splitlines()[0]
        elif self._stop_reason is not None:
            status, reason = "stopped", self._stop_reason
        if error is None:
            over()
        self.write_pending()
        end = EndLine(self._rank, status, reason, self._steps)
        self._write("end", {**asdict(end), "unix_ns": time.time_ns()})
        if self._environment is not None:
            self._environment.close()
        with self._writes:
            self._closed = True
            self._counters.close()
            self._lines.close()

    def _write(self, event: str, line: Mapping[str, object]) -> None:
        with self._writes:
            self.write_pending()
            self._lines.write({"event": event, **line})


def rank_of_process() -> tuple[int, int, int]:
    """(rank, world size, local rank) as the launcher set them; (0, 1, 0) without a launcher."""
    return (
        int(os.environ.get("RANK", "0")),
        int(os.environ.get("WORLD_SIZE", "1")),
        int(os.environ.get("LOCAL_RANK", "0")),
    )


def backend_name() -> str | None:
    """nccl, gloo …; None without a process group."""
    return dist.get_backend() if dist.is_initialized() else None


other_allocators: list[Callable[[], int]] = []  # each gives its own peak, where PyTorch's allocator is replaced


def peak_memory_bytes() -> int:
    """Peak memory so far: allocated on the GPU, or without a GPU resident in the process."""
    if other_allocators:
        return other_allocators[-1]()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _process(device_type: str) -> RankProcess:
    on_cuda = device_type.startswith("cuda")
    return RankProcess(
        node=_node(),
        host=socket.gethostname(),
        pid=os.getpid(),
        device_name=torch.cuda.get_device_name() if on_cuda else _cpu_name(),
        host_cpu=_cpu_name(),
        peak_memory_of="device" if on_cuda else "process",
        host_limit_bytes=memory_limit(os.getpid()),
        device_limit_bytes=torch.cuda.get_device_properties().total_memory if on_cuda else None,
    )


def record_environment(run_dir: Path, *, on_cuda: bool) -> EnvironmentRecorder:
    """Begin to record this node's environment, in the first process of a node."""
    known = {"host processor": _cpu_name(), **(_cuda_versions() if on_cuda else {})}
    return EnvironmentRecorder(run_dir, socket.gethostname(), _node(), known)


def _node() -> int:
    return int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0")))


@cache  # the kernel asks each core for a line of it
def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cuda_versions() -> dict[str, str | None]:
    """Of CUDA and NCCL as PyTorch was built with them, and of the kernel's driver, where it says so."""
    found = {"cuda": torch.version.cuda}
    if dist.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        found["nvidia driver"] = next(iter(re.findall(r"\b\d+\.\d+(?:\.\d+)?\b", text)), None)
    return found
