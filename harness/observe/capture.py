"""What records a training (nsys, torch.profiler, on request), and how ranks agree on its steps without a collective,
which a trace would show as communication.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.common.run_folder.captures import (
    CaptureRequest,
    folder_of,
    given_up_file,
    is_ready,
    read_request,
    stop_file,
)
from harness.common.run_folder.profile_window import WINDOW_RANGE, ProfileWindow
from harness.common.run_folder.run_files import KINETO
from harness.common.system.files import write_whole
from harness.observe.ranges import nvtx_package

LOOK_S = 0.5  # between two looks for a request
CUDART = torch.cuda.cudart  # PyTorch's own, also while another stands for it in a script


def _store() -> Any:
    """The process group's store; None: this rank is the only one."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.distributed_c10d._get_default_store()


def meet(meeting: str, patience: timedelta | None = None) -> None:
    """Return when every rank has called this with the same `meeting`. Use each place once.

    The process group's store counts the ranks. patience: how long to wait for them; None: as long as the store does. A
    single rank does not wait.

    Raises:
        torch.distributed.DistError: the others did not come in time, or the store is gone.
    """
    store = _store()
    if store is None:
        return
    here, complete = f"harness/meeting/{meeting}", f"harness/meeting/{meeting}/complete"
    if store.add(here, 1) == dist.get_world_size():
        store.set(complete, "")
    store.wait([complete], *([] if patience is None else [patience]))


def arrive(meeting: str) -> None:
    """Say that this rank has come to `meeting`, without waiting for the others. Each rank says so once."""
    if (store := _store()) is not None:
        store.add(f"harness/arrived/{meeting}", 1)


def all_arrived(meeting: str) -> bool:
    """Whether every rank has come to `meeting`. A single rank always has."""
    store = _store()
    return store is None or bool(store.add(f"harness/arrived/{meeting}", 0) == dist.get_world_size())


def first_said(subject: str, said: str | None) -> str | None:
    """What a rank was the first to say of a subject, now or before; None while none has. said: this rank's word.

    A lookup in the process group's store. A single rank agrees with itself.
    """
    store, key = _store(), f"harness/{subject}"
    if store is None:
        return said
    if said is not None:
        return str(store.compare_set(key, "", said).decode())
    return str(store.get(key).decode()) if store.check([key]) else None


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

    def abandon(self) -> None:
        """Leave the window out, before it begins: somebody else records."""

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


class NsysRecording:
    """Tells nsys when to record: with cudaProfilerStart and cudaProfilerStop, or without CUDA with an NVTX range.

    One nsys records all ranks of a node: the first rank that starts or stops it does so for all ranks. Under gradient
    accumulation the ranks can be many steps apart, so they meet there. name: of the meetings, each once in a training.
    patience: for ranks that may not come; None: all do.
    """

    def __init__(self, name: str, patience: timedelta | None = None) -> None:
        self._name, self._patience = name, patience
        self._records = False
        self._range: object = None

    def begin(self) -> None:
        _wait_for_the_device()  # kernels of earlier steps must not run into the recording
        self._meet(f"before {self._name}")
        self._range = _start_nsys()
        self._records = True
        self._meet(self._name)

    def end(self, together: bool) -> None:
        """End it, where it has begun. together: every rank does so after the same step."""
        if not self._records:
            return
        _wait_for_the_device()  # the recording must have all kernels of the last step
        if together:
            self._meet(f"after {self._name}")
            _wait_for_the_device()
        _stop_nsys(self._range)
        self._records = False

    def _meet(self, meeting: str) -> None:
        with nullcontext() if self._patience is None else suppress(dist.DistError):
            meet(meeting, self._patience)

    def step_ends(self) -> None:
        """nsys needs no word of it."""


def _wait_for_the_device() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _start_nsys() -> object:
    """Returns the range that `_stop_nsys` ends, which need not nest: an epoch may end inside of it."""
    if torch.cuda.is_available():
        CUDART().cudaProfilerStart()  # type: ignore[no-untyped-call]
        return None
    package = nvtx_package()
    return package and package.start_range(WINDOW_RANGE)


def _stop_nsys(window: object) -> None:
    if torch.cuda.is_available():
        CUDART().cudaProfilerStop()  # type: ignore[no-untyped-call]
    elif window is not None:
        nvtx_package().end_range(window)


class TorchRecording:
    """Records with torch.profiler into a file (Kineto's format). settings: of the profiler."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self._path, self._settings = path, settings
        self._profile: Any = None

    def begin(self) -> None:
        self._profile = _profiler(on_trace_ready=partial(_write, path=self._path), **self._settings)
        self._profile.start()

    def step_ends(self) -> None:
        self._profile.step()

    def end(self, together: bool) -> None:
        """End it, where it has begun; no rank needs another for it."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()


def trace_file(run_dir: Path, rank: int) -> Path:
    """Where a rank's trace by torch.profiler is kept."""
    return KINETO.path(run_dir, rank)


making_ours: list[bool] = []  # not empty while this module makes a profiler


def _profiler(**settings: Any) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    making_ours.append(True)
    try:
        # Message sizes of collectives and precisions of GEMMs come from the shapes.
        return torch.profiler.profile(activities=activities, record_shapes=True, **settings)
    finally:
        making_ours.pop()


def _write(profile: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Kineto writes the path of its file into the JSON without escapes: a quote in it would break the JSON.
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(plain))
        # PyTorch would compress line by line, which is slow; after SIGTERM only seconds may be left.
        write_whole(path, partial(copy_compressed, plain))


def copy_compressed(source: Path, target: Path) -> None:
    with source.open("rb") as read, gzip.open(target, "wb", compresslevel=3) as packed:
        shutil.copyfileobj(read, packed, length=1 << 20)


class OfWindow(Capture):
    """Records the steps of a window, and those before it that warm a profiler up. A rank that is stopped early or fails
    does not wait for the others."""

    def __init__(
        self, window: ProfileWindow, profiler_recording: NsysRecording | TorchRecording, warmup: int = 0
    ) -> None:
        self._begin, self._end, self._recording = window.start - warmup, window.end, profiler_recording

    def step_begins(self, step: int) -> None:
        if step == self._begin:
            self._recording.begin()

    def step_ends(self, step: int) -> None:
        if self._begin <= step < self._end:
            self._recording.step_ends()
        if step == self._end - 1:
            self._recording.end(together=True)

    def close(self) -> None:
        self._recording.end(together=False)


class OnRequest(Capture):
    """Another capture, and after its window what `slurm.sh capture` asks for, with torch.profiler or by nsys.

    Every rank must record the same steps, and no step may wait for a lookup while nothing is asked. The first rank
    looks into the run's folder and the others into the process group's store, each at most twice a second. A rank that
    learns of a request says so, and looks before each step from then on. Once all have said so, the first rank names
    the first step to record, and later the first that is no longer recorded. `lead`: steps that one rank can be ahead
    of another.
    """

    def __init__(
        self, inner: Capture, run_dir: Path, rank: int, *, first_step: int, lead: int, by_nsys: bool = False
    ) -> None:
        self._inner, self._run_dir, self._rank = inner, run_dir, rank
        self._first_step, self._lead, self._by_nsys = first_step, lead, by_nsys
        self._looked_s = -LOOK_S
        self._number = 1  # of the recording that comes next, or runs
        self._knows = False  # this rank knows that it is asked for
        self._steps: range | None = None
        self._recording: NsysRecording | TorchRecording | None = None

    def step_begins(self, step: int) -> None:
        if step >= self._first_step:
            self._agree(step)
            if self._steps is not None and self._recording is None and step >= self._steps.start:
                self._recording = self._new()
                self._recording.begin()
        self._inner.step_begins(step)

    def step_ends(self, step: int) -> None:
        self._inner.step_ends(step)
        if self._steps is not None and self._recording is not None and step + 1 >= self._steps.stop:
            self._recording.end(together=True)
            self._recording = None
            self._go_on()

    def abandon(self) -> None:
        self._inner = Capture()

    def close(self) -> None:
        self._inner.close()
        if self._recording is not None:
            self._recording.end(together=False)

    def _agree(self, step: int) -> None:
        looks = self._looks()
        if self._steps is None:
            if looks and not self._knows:
                self._learn()
            agreed = self._share("steps", self._first_word(step + self._lead) if looks else None)
            self._steps = range(*map(int, agreed.split(":"))) if agreed else None
            if self._steps is not None and not self._steps:
                self._go_on()
        else:
            ended = looks and self._rank == 0 and stop_file(self._run_dir, self._number).exists()
            agreed = self._share("end", str(step + self._lead + 1) if ended else None)
            if agreed:
                self._steps = range(self._steps.start, min(self._steps.stop, int(agreed)))

    def _learn(self) -> None:
        """See whether something is asked, and say so if it is."""
        said = "yes" if self._rank == 0 and self._asked() is not None else None
        if first_said(f"capture/{self._number}/asked", said):
            self._knows = True
            arrive(self._place)

    def _asked(self) -> CaptureRequest | None:
        asked = read_request(self._run_dir)
        return asked if asked is not None and asked.number == self._number else None

    def _first_word(self, ahead: int) -> str | None:
        """The steps that are asked for, no steps where that is taken back, or None."""
        if self._rank != 0 or not self._knows or not all_arrived(self._place):
            return None
        asked = self._asked()
        if asked is None:
            return None
        if is_ready(self._run_dir, asked):
            return f"{ahead}:{ahead + asked.steps}"
        if stop_file(self._run_dir, asked.number).exists():
            given_up_file(self._run_dir, asked.number).touch()
            return "0:0"
        return None

    def _looks(self) -> bool:
        """Whether this rank looks now for what is new."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return False
        self._looked_s = time.monotonic()
        return True

    @property
    def _place(self) -> str:
        return f"capture {self._number} is asked for"

    def _share(self, what: str, said: str | None) -> str | None:
        """What the first rank has said of it, now or before; None before this rank knows of the request."""
        return None if not self._knows else first_said(f"capture/{self._number}/{what}", said)

    def _new(self) -> NsysRecording | TorchRecording:
        if self._by_nsys:
            return NsysRecording(f"recording {self._number}")
        return TorchRecording(folder_of(self._run_dir, self._number) / f"rank{self._rank}.json.gz")

    def _go_on(self) -> None:
        """To the recording of the next number."""
        self._steps, self._knows = None, False
        self._number += 1


def open_capture(profiler: str, window: ProfileWindow, run_dir: Path, rank: int, *, lead: int = 1) -> Capture:
    """The capture for `--profiler nsys|torch|none`; use it as a context manager.

    lead: steps that one rank can be ahead of another.
    """
    inner, first_step = Capture(), 0
    if profiler == "nsys":
        inner, first_step = OfWindow(window, NsysRecording("recording")), window.end
    elif profiler == "torch":
        schedule = torch.profiler.schedule(wait=0, warmup=window.warmup, active=window.active, repeat=1)
        recording = TorchRecording(trace_file(run_dir, rank), schedule=schedule)
        inner, first_step = OfWindow(window, recording, window.warmup), window.end
    return OnRequest(inner, run_dir, rank, first_step=first_step, lead=lead, by_nsys=profiler == "nsys")
