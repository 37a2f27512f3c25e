"""Runs the trainings of `scripts` as their launchers do, but with ranks that are forked from a process which has
imported their packages: those imports are most of a small training's time."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context, set_start_method
from multiprocessing.context import ForkServerContext
from pathlib import Path

from own_trainings import SCRIPTS, Training

from tests.exercises.launching import free_port
from tests.waiting import limit_s

PRELOADED = [
    *("torch.distributed.run", "torch.distributed.fsdp", "torch.distributed.pipelining", "accelerate"),
    *("deepspeed", "lightning", "transformers.models.llama.modeling_llama", "transformers.trainer"),
]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


@dataclass(frozen=True)
class _Rank:
    words: Sequence[str]
    folder: Path
    log: Path
    environment: dict[str, str]


def run_forked(training: Training, options: Sequence[str], logs_in: Path, folder: Path = SCRIPTS) -> None:
    """Run a training of `folder` to its end; fails with the ranks' logs where one of them fails."""
    logs = [logs_in / f"{training.name}.rank{rank}.log" for rank in range(training.ranks)]
    port = str(free_port())
    ranks = [
        _Rank([*training.words, *options], folder, log, _environment(training, rank, port))
        for rank, log in enumerate(logs)
    ]
    processes = [_context().Process(target=_run, args=(rank,)) for rank in ranks]
    for process in processes:
        process.start()
    for process in processes:
        process.join(limit_s())
        process.kill()
    texts = [log.read_text(encoding="utf-8") for log in logs]
    assert all(process.exitcode == 0 for process in processes), "\n".join(texts)


def _environment(training: Training, rank: int, port: str) -> dict[str, str]:
    of_rank = {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(training.ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {**ENVIRONMENT, **dict(training.environment), **(of_rank if training.ranks > 1 else {})}


@cache
def _context() -> ForkServerContext:
    os.environ["DS_ACCELERATOR"] = "cpu"
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(rank: _Rank) -> None:
    """Ends this process as the training ends."""
    log = os.open(rank.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(rank.folder)
    os.environ.update(rank.environment)
    sys.path[0] = str(rank.folder)
    set_start_method("fork", force=True)  # of the loaders' workers, as in a process that a launcher starts
    first, *others = rank.words
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(rank.words)
        runpy.run_path(str(rank.folder / first), run_name="__main__")
    atexit._run_exitfuncs()  # as a process that a launcher starts does
