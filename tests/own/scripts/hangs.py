"""A small DDP training that hangs, dies or is slow in a chosen way; the line that does it has a comment with the kind.

`--kind K --rank R --step S`: the rank does it in that step. `slow-…` kinds go on after `--seconds`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Tensor]):
    """Its worker does what `stall` says at one item."""

    def __init__(self, asked: argparse.Namespace, mine: bool, batch: int) -> None:
        self.asked, self.mine, self.batch = asked, mine, batch

    def __len__(self) -> int:
        return int(self.asked.steps) * self.batch

    def __getitem__(self, index: int) -> Tensor:
        if self.mine and index == self.asked.step * self.batch:
            if self.asked.kind == "worker":
                threading.Event().wait()
            elif self.asked.kind == "worker-stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self.asked.kind == "slow-loader":
                time.sleep(self.asked.seconds)
            elif self.asked.kind == "slow-loader-cpu":
                compute(self.asked.seconds)
        return torch.randn(256)


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def hang(kind: str, rank: int, world: int, groups: list[Any]) -> None:  # noqa: PLR0912 - one branch for each kind
    """What the chosen rank does."""
    if kind == "sleep":
        time.sleep(10_000)  # sleep
    elif kind == "loop":
        while True:
            rank += 1  # loop
    elif kind == "poll":
        while not Path("/nowhere/ready").exists():
            time.sleep(0.05)  # poll
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # lock
    elif kind == "thread":
        thread = threading.Thread(target=time.sleep, args=(10_000,), daemon=True)
        thread.start()
        thread.join()  # thread
    elif kind == "fifo":
        fifo = Path(tempfile.mkdtemp()) / "fifo"
        os.mkfifo(fifo)
        fifo.read_text()  # fifo
    elif kind == "pipe":
        os.read(os.pipe()[0], 1)  # pipe
    elif kind == "socket":
        ends = socket.socketpair()
        ends[0].recv(1)  # socket
    elif kind == "child":
        subprocess.run(["sleep", "10000"], check=True)  # child
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # stopped
    elif kind == "extra":
        dist.barrier()  # extra
    elif kind == "new-group":
        dist.new_group(list(range(world)))  # new-group
    elif kind == "recv":
        dist.recv(torch.ones(3), (rank + 1) % world)  # recv
    elif kind == "left":
        dist.barrier(group=groups[0])  # left
    elif kind == "holds-gil":
        ctypes.PyDLL(None).sleep(10_000)  # holds-gil


def die(kind: str) -> None:
    """What the chosen rank does."""
    if kind == "raise":
        raise ValueError("the loss is strange")  # raise
    if kind == "nested":
        try:
            dict[str, int]()["missing"]
        except KeyError as error:
            raise RuntimeError("no such setting") from error  # nested
    elif kind == "library":
        torch.ones(3) @ torch.ones(4)  # library
    elif kind == "exit":
        sys.exit(3)  # exit
    elif kind == "os-exit":
        os._exit(5)  # os-exit
    elif kind == "segv":
        ctypes.string_at(0)  # segv
    elif kind == "abort":
        os.abort()  # abort
    elif kind == "kill":
        time.sleep(0.6)  # kill: long enough to be seen here
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "memory":
        bytearray(1 << 60)  # memory
    elif kind == "early":
        sys.exit(0)  # early


def trickle(end: socket.socket, seconds: float) -> None:
    """Send a few bytes at a time, for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        end.send(bytes(100))
    end.close()


def be_slow(kind: str, seconds: float, model: nn.Module) -> None:
    """What the chosen rank does, while the others wait for it."""
    end = time.monotonic() + seconds
    if kind == "slow-evaluation":
        model.eval()
        while time.monotonic() < end:
            with torch.no_grad():
                model(torch.randn(64, 256))
            time.sleep(0.2)
        model.train()
    elif kind == "slow-computing":
        compute(seconds)
    elif kind == "slow-checkpoint":
        with tempfile.NamedTemporaryFile() as file:
            while time.monotonic() < end:
                torch.save(torch.randn(1_000_000), file.name)
                time.sleep(0.05)
    elif kind == "slow-garbage":
        heap = [[i] for i in range(300_000)]
        while time.monotonic() < end:
            gc.collect()
        del heap
    elif kind == "slow-child":
        text = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
        subprocess.run([sys.executable, "-S", "-c", text], check=True)
    elif kind == "slow-download":
        ends = socket.socketpair()
        sender = threading.Thread(target=trickle, args=(ends[1], seconds), daemon=True)
        sender.start()
        while ends[0].recv(100):
            pass
    elif kind == "slow-compile":
        torch.compile(nn.Sequential(*(nn.Linear(64 + i, 65 + i) for i in range(12))))(torch.randn(8, 64))
    elif kind == "slow-sleep":
        time.sleep(min(seconds, 6.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="none")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--step", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--tag", help="by which its processes are found")
    parser.add_argument("--step-ms", type=float, default=30.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    loads = "loader" in asked.kind or "worker" in asked.kind
    numbers = Numbers(asked, rank == asked.rank, 16)
    batches = iter(DataLoader(numbers, 16, num_workers=1 if loads else 0))
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(asked.steps):
        batch = next(batches)  # worker
        if step == asked.step:
            if asked.kind == "order":
                for group in groups if rank == asked.rank else groups[::-1]:
                    dist.all_reduce(torch.ones(3), group=group)  # order
            elif asked.kind == "op":
                if rank == asked.rank:
                    dist.broadcast(torch.ones(3), rank)  # op
                else:
                    dist.all_reduce(torch.ones(3))
                dist.barrier()
            elif rank == asked.rank:
                hang(asked.kind, rank, world, groups)
                die(asked.kind)
                be_slow(asked.kind, asked.seconds, net)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(asked.step_ms / 1000)
    dist.destroy_process_group()


main()
