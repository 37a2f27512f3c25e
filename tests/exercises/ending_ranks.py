"""Ranks of a tiny DDP training that hang or die: forked from a process that has imported PyTorch once.

A signal (USR1) makes a rank write the stacks of its threads, whatever it waits for.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from exercises.utils.faults.inject import injected
from tests.exercises.small_training import Tiny, Training, arguments, loop
from tests.faults.processes import is_alive
from tests.waiting import limit_s, wait_until

STEPS, STEP = 4, 2  # the fault comes in the third of four steps


@dataclass(frozen=True)
class Rank:
    """A rank, as the test sees it."""

    number: int
    folder: Path
    process: ForkServerProcess

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return len(self._written(f"steps{self.number}"))

    @property
    def lines(self) -> str:
        """What it recorded of its faults."""
        return self._written(f"faults/rank{self.number}.jsonl")

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._written(f"log{self.number}")

    def _written(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def children(self) -> list[int]:
        """The processes that it started and that are still there."""
        with suppress(psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(self.process.pid).children()]
        return []

    def stacks(self) -> str:
        """The stacks of its threads, the innermost call first."""
        path = self.folder / f"stacks{self.number}"
        path.write_text("")
        os.kill(self.process.pid or 0, signal.SIGUSR1)
        wait_until(
            lambda: "ending_ranks.py" in path.read_text() or "_shutdown" in path.read_text(),
            f"the stacks of rank {self.number}",
            lambda: f"{path.read_text()}\n{self.log}",
        )
        return path.read_text()

    def exit_code(self) -> int | None:
        """Wait for its end; None: it does not end."""
        self.process.join(limit_s())
        return self.process.exitcode


@contextmanager
def ranks_with(fault: str, folder: Path, world_size: int = 1) -> Iterator[list[Rank]]:
    """Ranks that train with the fault; killed at the end, with what they started."""
    ranks = []
    for number in range(world_size):
        process = forkserver().Process(target=_train, args=(folder, number, world_size, fault))
        process.start()
        ranks.append(Rank(number, folder, process))
    started: list[int] = []
    try:
        yield ranks
    finally:
        for rank in ranks:
            started += rank.children
            rank.process.kill()
            rank.process.join(limit_s())
        with ExitStack() as at_last:
            for pid in started:
                at_last.callback(_kill, pid)
            wait_until(lambda: not any(map(is_alive, started)), "the end of what the ranks started")


@contextmanager
def all_ended(started: subprocess.Popen[str]) -> Iterator[None]:
    """At the end a launcher that was started is killed, with all that is below it; nothing is left."""
    below: list[int] = []
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            below = [each.pid for each in psutil.Process(started.pid).children(recursive=True)]
        started.kill()
        for pid in below:
            _kill(pid)
        started.wait(limit_s())
        wait_until(lambda: not any(map(is_alive, below)), "the end of what the launcher started")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@cache
def forkserver() -> ForkServerContext:
    """Whose processes are forked from one that has imported PyTorch once."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def forked_script(script: str, *words: str) -> ForkServerProcess:
    """A process that runs the text of a script, with these words in sys.argv, and has imported PyTorch already."""
    process = forkserver().Process(target=_run, args=(script, words))
    process.start()
    return process


def _run(script: str, words: tuple[str, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    sys.argv[1:] = words
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})


def _train(folder: Path, rank: int, world_size: int, fault: str) -> None:
    """A whole rank, in its own process."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    os.dup2(_opened(folder / f"log{rank}"), 2)
    faulthandler.register(signal.SIGUSR1, _opened(folder / f"stacks{rank}"))
    model: torch.nn.Module = Tiny()
    if world_size > 1:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training = Training(arguments(folder, fault), [torch.ones(4, 8)] * STEPS, model, optimizer)
    with injected(training, model, optimizer) as faulty, (folder / f"steps{rank}").open("wb", 0) as steps:
        for _ in loop(faulty):
            steps.write(b".")
    if world_size > 1:
        dist.destroy_process_group()


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
