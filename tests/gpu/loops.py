"""Small trainings of our own under torch.profiler, each with one special feature: its way of launching, or a fault.

    python tests/gpu/loops.py graphs --folder FOLDER

A separate process for each case, since a CUDA graph or a crash must not reach the next one. Writes FOLDER/rank0.json.gz
and prints one line of JSON. Knows PyTorch only; `load` keeps the device busy for some seconds and records nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WAIT, WARMUP, ACTIVE = 4, 2, 5


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


class Loop:
    """One training step, called repeatedly. Subclasses differ in one thing."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        torch.manual_seed(1)
        self.sizes, self.device = sizes, device
        layers = [
            nn.TransformerEncoderLayer(
                sizes.hidden, sizes.heads, 4 * sizes.hidden,
                dropout=0.0, activation="gelu", batch_first=True, norm_first=True, bias=False,
            )
            for _ in range(sizes.layers)
        ]  # fmt: skip
        self.model: Any = nn.Sequential(*layers).to(device, torch.bfloat16)
        on_cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=on_cuda, capturable=on_cuda)
        shape = (sizes.batch, sizes.length, sizes.hidden)
        self.ready = torch.randn(shape, device=device, dtype=torch.bfloat16)

    def load(self) -> Tensor:
        """The next batch on the device."""
        return self.ready

    def loss(self, batch: Tensor) -> Tensor:
        """Of the layers, one after the other."""
        loss: Tensor = self.model(batch).float().square().mean()
        return loss

    def step(self, number: int) -> None:
        """One training step under the ranges that the analysis knows."""
        with record_function(f"DataLoad batch {number}"):
            batch = self.load()
        with record_function("forward"):
            loss = self.loss(batch)
        with record_function("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
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
        loss = self.loss(self.ready)
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

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, device)
        for layer in self.model:
            layer.register_forward_hook(self._wait)

    def _wait(self, *_: object) -> None:
        _wait(self.device)


class Pageable(Loop):
    """Each step copies a large buffer that is not pinned. It is filled before the steps: only the copy is the fault."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, device)
        self._buffer = torch.ones(sizes.buffer, dtype=torch.uint8)

    def load(self) -> Tensor:
        self._buffer.to(self.device, copy=True)
        return self.ready


SMALL_BATCH = ("eager-small", "fault-sync")  # layers so short that a wait after each one matters
CASES: dict[str, type[Loop]] = {
    "eager": Loop,
    "eager-small": Loop,
    "graphs": Graphs,
    "compile": Compiled,
    "fault-sync": SyncPerLayer,
    "fault-pageable": Pageable,
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
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(folder / "rank0.json.gz")),
        record_shapes=True,
    ) as profiler:
        for number in range(WAIT + WARMUP + ACTIVE):
            begin_ns = time.perf_counter_ns()
            loop.step(number)
            steps_ns.append(time.perf_counter_ns() - begin_ns)
            profiler.step()
    return {"unrecorded_ns": median(steps_ns[1:WAIT]), "recorded_ns": median(steps_ns[-ACTIVE:])}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
