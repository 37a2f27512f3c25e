"""Injectors of the faults that end a training or its progress: crash, oom, nan and hang."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from exercises.utils.faults.machine import SideProcess
from exercises.utils.faults.moments import at_next_call
from exercises.utils.faults.target import FaultTarget
from harness.common.faults.fault import Fault

EXIT_STATUS = 3
HEADROOM = 2**28  # bytes: the other threads of the process allocate, too
CHUNK = 2**24
PR_SET_PDEATHSIG = 1
LARGE = 2**21  # bytes per rank: several of gloo's messages, which are 1 MiB at most
TAG = 2**20  # no other message has it


def crash(fault: Fault, target: FaultTarget) -> None:
    """End in forward."""
    end = _KINDS[fault.values["kind"]]
    target.once("forward", fault, lambda: at_next_call(end))


def _exception() -> None:
    raise RuntimeError("this step failed")


def _segv() -> None:
    _no_core_file()
    ctypes.string_at(0)  # reads at the address 0


def _abort() -> None:
    _no_core_file()
    os.abort()


def _no_core_file() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


_KINDS: dict[str, Callable[[], None]] = {
    "exception": _exception,
    "segv": _segv,
    "abort": _abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: sys.exit(EXIT_STATUS),
    "gone": lambda: os._exit(0),  # without the functions that Python calls at its end
}


def run_out_of_memory(fault: Fault, target: FaultTarget) -> None:
    """Allocate in forward."""
    target.once("forward", fault, lambda: at_next_call(_allocate))


def _allocate() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    held = []
    try:
        while True:
            held.append(bytearray(CHUNK))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))  # what follows reports the error


Change = Callable[[torch.Tensor], torch.Tensor]


def break_loss(fault: Fault, target: FaultTarget) -> None:
    """Multiply by NaN what the model returns, or the gradient that comes back to it."""
    first, change = fault.count("step"), _IN[fault.values["in"]]

    def after_forward(_module: object, _inputs: object, output: Any) -> Any:
        return changed(output, change) if target.moments.step >= first else output

    def record() -> None:
        if target.moments.step >= first:
            target.record(fault, target.moments.step, 0, time.time_ns())

    for model in target.models:
        target.until.callback(model.register_forward_hook(after_forward).remove)
    target.moments.at("forward", record)


def changed(output: Any, change: Change) -> Any:
    """What a model returns, with its loss changed; if it returns no loss, with all floats changed."""
    if isinstance(output, torch.Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(getattr(output, "loss", None), torch.Tensor):
        output.loss = change(output.loss)
    elif isinstance(output, dict):
        for name, value in output.items():
            output[name] = changed(value, change)
    elif type(output) in (tuple, list):
        return type(output)(changed(value, change) for value in output)
    return output


def _times_nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * math.nan


def _nan_gradient(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor.register_hook(_times_nan)  # type: ignore[no-untyped-call]
    return tensor


_IN: dict[str, Change] = {"loss": _times_nan, "gradient": _nan_gradient}


@dataclass(frozen=True)
class _Here:
    """This rank. faulty: it has the fault, where all ranks act. groups: two process groups of all ranks."""

    target: FaultTarget
    faulty: bool
    groups: Sequence[dist.ProcessGroup]

    def ones(self, count: int = 1) -> torch.Tensor:
        """Bytes on the device that trains."""
        return torch.ones(count, dtype=torch.uint8, device=self.target.device)

    @property
    def next_rank(self) -> int:
        return (self.target.rank + 1) % dist.get_world_size()


def hang(fault: Fault, target: FaultTarget) -> None:
    """Hang in forward, or where the training waits for its batch."""
    kind = fault.values["kind"]
    groups = [dist.new_group() for _ in range(2)] if kind == "order" else []
    here = _Here(target, fault.concerns(target.rank), [group for group in groups if group is not None])
    target.once("load" if kind.startswith("worker") else "forward", fault, lambda: _HANGS[kind](here))


# -- one rank alone ----------------------------------------------------------------------------------------------------


def _sleep(_: _Here) -> None:
    while True:
        time.sleep(3600)


def _loop(_: _Here) -> None:
    number = 0
    while True:
        number = (number * 5 + 1) % 1024


def _lock(_: _Here) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _file(here: _Here) -> None:
    path = here.target.run_dir / f"batches-rank{here.target.rank}.fifo"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)  # to open it for reading alone would wait for a writer
    path.unlink()  # a killed process would leave it behind
    os.read(descriptor, 1)


def _socket(_: _Here) -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def _child(_: _Here) -> None:
    SideProcess("stopper", os.getpid()).wait()  # it waits for a line of its input


def _stopped(_: _Here) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _worker(stopped: bool) -> None:
    def never(_: object) -> None:
        """A batch that never comes: its worker sleeps, or is stopped."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with its rank
        if stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(3600)

    one = cast("Dataset[int]", [0])  # a list works, too
    next(iter(DataLoader(one, collate_fn=never, num_workers=1, multiprocessing_context="fork")))


# -- with other ranks --------------------------------------------------------------------------------------------------


def _missing_collective(_: _Here) -> None:
    dist.barrier()


def _other_collective(here: _Here) -> None:
    if here.faulty:
        dist.broadcast(here.ones(), src=here.next_rank)
    else:
        dist.all_reduce(here.ones())


def _other_size(here: _Here) -> None:
    size = LARGE * dist.get_world_size()
    dist.all_reduce(here.ones(2 * size if here.faulty else size))


def _order(here: _Here) -> None:
    for group in reversed(here.groups) if here.faulty else here.groups:
        dist.all_reduce(here.ones(), group=group)


def _left_early(_: _Here) -> None:
    """The script ends, and its process stays, because a thread of it goes on."""
    threading.Thread(target=threading.Event().wait, name="writer").start()
    raise SystemExit(0)


def _no_receive(here: _Here) -> None:
    dist.recv(here.ones(), src=here.next_rank, tag=TAG)


_HANGS: dict[str, Callable[[_Here], None]] = {
    "sleep": _sleep,
    "loop": _loop,
    "lock": _lock,
    "file": _file,
    "socket": _socket,
    "child": _child,
    "stopped": _stopped,
    "worker-hangs": lambda _: _worker(stopped=False),
    "worker-stopped": lambda _: _worker(stopped=True),
    "missing-collective": _missing_collective,
    "other-collective": _other_collective,
    "other-size": _other_size,
    "order": _order,
    "left-early": _left_early,
    "no-receive": _no_receive,
}
