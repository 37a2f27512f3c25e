"""Forks the ranks of exercise 3's trainings from one process that has imported PyTorch and megatron-core.

Those imports are most of a small training's time. Each line on standard input asks for one training, as JSON; the
answer is its exit status. What the launcher itself does is not seen here: some tests start the real one.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from exercises.exercise_3_MegatronLM import cpu_shim, runtime

SCRIPT = Path(runtime.__file__).with_name("train.py")


def serve() -> None:
    """Answer until standard input ends; a rank leaves this function with its own SystemExit."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        ranks = []
        for rank in range(order["processes"]):
            pid = os.fork()
            if pid == 0:
                _train(order, rank)
            ranks.append(pid)
        print(_exit_status(ranks), file=answers, flush=True)


def _train(order: dict[str, Any], rank: int) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if order["first"]:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    world = str(order["processes"])
    places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update(places | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])})
    sys.argv = [str(SCRIPT), *order["words"]]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    sys.exit(0)


def _exit_status(ranks: list[int]) -> int:
    """The exit status of the rank that failed first; the others are then stopped, as a launcher does."""
    first, running = 0, set(ranks)
    while running:
        pid, status = os.wait()
        running.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first = code
            for other in running:
                os.kill(other, signal.SIGTERM)
    return first


if __name__ == "__main__":
    runtime.order_launches()
    cpu_shim.install()  # megatron looks for CUDA while it is imported
    cpu_shim.__dict__["install"] = lambda: None  # not undone: each rank inherits it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron warns of each optional package of NVIDIA
        from exercises.exercise_3_MegatronLM import data, engine, iteration_metrics, stage_ranges  # noqa: F401

    serve()
