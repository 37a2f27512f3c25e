"""Small trainings of our own under torch.profiler, each with one special feature: its way of launching, or a fault.

    python tests/gpu/loops.py graphs --folder FOLDER

A separate process for each case, since a CUDA graph or a crash must not reach the next one. Writes FOLDER/rank0.json.gz
and prints one line of JSON. Knows PyTorch only; `load` keeps the device busy for some seconds and records nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WAIT, WARMUP, ACTIVE = 4, 2, 5
STALL_S = 0.02  # of the data, in each step


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and its batch; the copied buffer in bytes."""

    hidden: int
    layers: int
    heads: int
    batch: int
    length: int
    buffer: int


ON_GPU = Sizes(hidden=2048, layers=8, heads=16, batch=8, length=1024, buffer=256 << 20)
ON_CPU = Sizes(hidden=64, layers=2, heads=4, batch=2, length=64, buffer=1 << 20)


class Model(nn.Module):
    """Transformer layers one after the other; `between` is called after each of them, to place a fault there."""

    def __init__(self, sizes: Sizes, between: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                sizes.hidden, sizes.heads, 4 * sizes.hidden,
                dropout=0.0, activation="gelu", batch_first=True, norm_first=True, bias=False,
            )
            for _ in range(sizes.layers)
        )  # fmt: skip
        self._between = between

    def forward(self, x: Tensor) -> Tensor:
        """A loss."""
        for layer in self.layers:
            x = layer(x)
            if self._between is not None:
                self._between()
        return x.float().square().mean()


class Loop:
    """One training step, called repeatedly. Subclasses differ in one thing."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        torch.manual_seed(1)
        self.sizes, self.device = sizes, device
        self.model: Any = Model(sizes, self.between()).to(device, torch.bfloat16)
        on_cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=on_cuda, capturable=on_cuda)
        shape = (sizes.batch, sizes.length, sizes.hidden)
        self.ready = torch.randn(shape, device=device, dtype=torch.bfloat16)

    def between(self) -> Callable[[], None] | None:
        """Called after each layer."""
        return None

    def load(self) -> Tensor:
        """The next batch on the device."""
        return self.ready

    def step(self, number: int) -> None:
        """One training step under the ranges that the analysis knows."""
        with record_function(f"DataLoad batch {number}"):
            batch = self.load()
        with record_function("forward"):
            loss = self.model(batch)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer_step"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        loss.item()  # waits for the device


class Compiled(Loop):
    """The same model through torch.compile."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, device)
        self.model = torch.compile(self.model)


class Graphs(Loop):
    """Forward, backward and optimizer captured once and replayed."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # the first steps allocate memory and choose algorithms, as a capture needs
            for _ in range(3):
                self._whole()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self._graph):
            self._loss = self._whole(zero=False)

    def _whole(self, zero: bool = True) -> Tensor:
        if zero:
            self.optimizer.zero_grad(set_to_none=True)
        loss: Tensor = self.model(self.ready)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def step(self, number: int) -> None:
        """Replay the graph."""
        with record_function("forward_backward_optimizer"):
            self._graph.replay()
        self._loss.item()


class SyncPerLayer(Loop):
    """The host waits for the device after every layer."""

    def between(self) -> Callable[[], None] | None:
        return torch.cuda.synchronize if self.device.type == "cuda" else None


class Pageable(Loop):
    """Each step copies a large buffer that is not pinned. It is filled before the steps: only the copy is the fault."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, device)
        self._buffer = torch.ones(sizes.buffer, dtype=torch.uint8)

    def load(self) -> Tensor:
        self._buffer.to(self.device, copy=True)
        return self.ready


class DataStall(Loop):
    """The next batch comes late."""

    def load(self) -> Tensor:
        time.sleep(STALL_S)  # the fault
        return self.ready


SMALL_BATCH = ("eager-small", "fault-sync")  # layers so short that a wait after each one matters
CASES: dict[str, type[Loop]] = {
    "eager": Loop,
    "eager-small": Loop,
    "graphs": Graphs,
    "compile": Compiled,
    "fault-sync": SyncPerLayer,
    "fault-pageable": Pageable,
    "fault-data-stall": DataStall,
}


def main() -> int:
    """One case, recorded."""
    parser = argparse.ArgumentParser(description="A small training with one peculiarity, recorded.")
    parser.add_argument("case", choices=(*CASES, "load"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long `load` works")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    if arguments.case == "load":
        print(*load(device, arguments.seconds))
        return 0
    if arguments.case in SMALL_BATCH:
        sizes = replace(sizes, batch=2)
    loop = CASES[arguments.case](sizes, device)
    print(json.dumps(record(loop, arguments.folder, device)))
    return 0


def load(device: torch.device, seconds: float) -> tuple[float, float]:
    """Matrix products for `seconds`; returns their begin and end on the wall clock."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (256, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    begin_s, end = time.time(), time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(50):
            torch.matmul(left, right)
        _wait(device)
    return begin_s, time.time()


def record(loop: Loop, folder: Path, device: torch.device) -> dict[str, float]:
    """Train, keep the trace of the last steps, and return the median step in ns: not recorded, and recorded."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    folder.mkdir(parents=True, exist_ok=True)
    steps_ns: list[int] = []
    with profile(
        activities=activities,
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda recorded: _write(recorded, folder / "rank0.json.gz"),
        record_shapes=True,
    ) as profiler:
        for number in range(WAIT + WARMUP + ACTIVE):
            with _timed(steps_ns):
                loop.step(number)
            profiler.step()
    return {"unrecorded_ns": median(steps_ns[1:WAIT]), "recorded_ns": median(steps_ns[-ACTIVE:])}


@contextmanager
def _timed(into: list[int]) -> Iterator[None]:
    begin = time.perf_counter_ns()
    yield
    into.append(time.perf_counter_ns() - begin)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _write(recorded: Any, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target)


if __name__ == "__main__":
    sys.exit(main())
