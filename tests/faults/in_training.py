"""Faults of a real training over two nodes, whose ranks wait for each other."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.faults.fault import SLURM, Fault, Setting
from tests.faults.in_ranks import LOGS, METRICS, TRACES
from tests.faults.scene import Scene

REAL = Setting(training="real", nodes=2, steps=9999)


def signalled(number: signal.Signals, rank: int) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        pids = [scene.training_pid(each) for each in range(2)]  # both are at work
        scene.kill(number, pids[rank])

    return inject


def _ended_by(number: signal.Signals, rank: int) -> Fault:
    name = number.name.removeprefix("SIG")
    which = "the first node's" if rank == 0 else "the second node's"
    return Fault(
        name=f"training-rank{rank}-{name.lower()}",
        what=f"{which} rank of a training over two nodes gets `{name}`",
        inject=signalled(number, rank),
        where=SLURM,
        state="failed",
        exit_code=128 + number,
        tells=f"exit {128 + number}: ended by the signal {name}",
        kept="metrics of every step so far",
        keeps=(METRICS, "status.json"),
        then=LOGS,
        setting=REAL,
    )


FAULTS = (
    *(_ended_by(signal.SIGKILL, rank) for rank in (0, 1)),
    Fault(
        name="training-rank1-term",
        what="one rank of a training over two nodes gets `TERM`: all stop at the same step",
        inject=signalled(signal.SIGTERM, 1),
        where=SLURM,
        state="failed",
        exit_code=143,
        tells="exit 143: ended by the signal TERM",
        kept="metrics and whole traces of the steps so far",
        keeps=(METRICS, TRACES, "status.json"),
        then="slurm.sh report RUN",
        setting=REAL,
    ),
)
