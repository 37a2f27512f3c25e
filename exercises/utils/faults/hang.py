"""hang: a rank makes no progress any more. Each kind waits for something that really does not come.

On gloo a collective waits only for the same kind of collective with messages of the same size: it ends the process if
a message is larger than what it expects. Therefore `missing-collective` is a barrier, and `other-size` differs in the
number of messages: gloo cuts large tensors into messages of the same size.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from exercises.utils.faults.side_process import SideProcess
from exercises.utils.faults.target import Target
from harness.common.faults import Fault

PR_SET_PDEATHSIG = 1
LARGE = 2**21  # bytes per rank: several of gloo's messages, which are 1 MiB at most
TAG = 2**20  # no other message has it


@dataclass(frozen=True)
class _Here:
    """This rank. faulty: it has the fault, where all ranks act. groups: two process groups of all ranks."""

    target: Target
    faulty: bool
    groups: Sequence[dist.ProcessGroup]

    def ones(self, count: int = 1) -> torch.Tensor:
        """Bytes on the device that trains."""
        return torch.ones(count, dtype=torch.uint8, device=self.target.device)

    @property
    def next_rank(self) -> int:
        """Another rank."""
        return (self.target.rank + 1) % dist.get_world_size()


def inject(fault: Fault, target: Target) -> None:
    """Hang in forward, or where the training waits for its batch."""
    kind = fault.values["kind"]
    groups = [dist.new_group() for _ in range(2)] if kind == "order" else []
    here = _Here(target, fault.concerns(target.rank), [group for group in groups if group is not None])
    target.once("load" if kind.startswith("worker") else "forward", fault, lambda: _KINDS[kind](here))


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


class _Endless(Dataset[int]):
    """A sample that never comes: its worker sleeps, or is stopped."""

    def __init__(self, stopped: bool) -> None:
        self._stopped = stopped

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with its rank
        if self._stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(3600)


def _worker(stopped: bool) -> None:
    next(iter(DataLoader(_Endless(stopped), num_workers=1, multiprocessing_context="fork")))


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


_KINDS: dict[str, Callable[[_Here], None]] = {
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
