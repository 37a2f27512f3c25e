"""Faults of the training's own processes: killed, stopped, failing by themselves, at every moment of a run."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.faults.fault import BOTH, LOCAL, Fault, Place, Setting, nothing
from tests.faults.scene import Scene

TRACES = "torch/rank*.json.gz"
METRICS = "metrics/rank*.jsonl"
LOGS = "slurm.sh logs RUN"


def killed(number: signal.Signals, moment: str, *ranks: int) -> Callable[[Scene], None]:
    """These ranks get the signal as soon as all of them are at the moment."""

    def inject(scene: Scene) -> None:
        scene.kill(number, *[scene.reached(moment, rank) for rank in ranks])

    return inject


def _killed_at(moment: str, what: str, kept: str, keeps: tuple[str, ...], *, quick: tuple[Place, ...] = ()) -> Fault:
    return Fault(
        name=f"rank-killed-at-{moment}",
        what=f"a rank is killed (`KILL`) {what}",
        inject=killed(signal.SIGKILL, moment, 1),
        state="failed",
        exit_code=137,
        tells="ended by the signal KILL; the system does this if memory runs out",
        kept=kept,
        keeps=keeps,
        then=LOGS,
        quick=quick,
        setting=Setting(ranks=2, steps=6000 if moment == "window" else 5, training=f"hold({moment!r})"),
    )


def _signal(number: signal.Signals, rank: int, *, quick: tuple[Place, ...] = ()) -> Fault:
    name = number.name.removeprefix("SIG")
    which = {0: "the first rank", 1: "the last rank"}[rank]
    return Fault(
        name=f"rank{rank}-{name.lower()}",
        what=f"{which} gets `{name}` while it trains",
        inject=killed(number, "window", rank),
        state="failed",
        exit_code=128 + number,
        tells=f"exit {128 + number}: ended by the signal {name}",
        kept="metrics of every step so far; the traces of the ranks that could still write them",
        keeps=(METRICS, "status.json"),
        then=LOGS,
        quick=quick,
        setting=Setting(ranks=2, steps=6000),
    )


def _itself(name: str, what: str, training: str, exit_code: int, tells: str, **more: object) -> Fault:
    return Fault(
        name=name,
        what=what,
        inject=nothing,
        state="failed",
        exit_code=exit_code,
        tells=tells,
        kept="everything that it wrote before",
        then=LOGS,
        setting=Setting(training=training),
        **more,  # type: ignore[arg-type]  # fields of Fault
    )


FAULTS = (
    _killed_at("import", "while it imports", "its logs", ("status.json",)),
    _killed_at("window", "in the profiled steps", "metrics of every step", (METRICS,), quick=BOTH),
    _killed_at(
        "trace", "while it writes its trace", "metrics; an incomplete trace is not used", (METRICS,), quick=LOCAL
    ),
    _killed_at("end", "after its last step", "everything: metrics and whole traces", (METRICS, TRACES)),
    _signal(signal.SIGSEGV, 0),
    _signal(signal.SIGTERM, 1),
    _itself("exits-7", "the training exits with 7", "at('window', lambda rank: os._exit(7))", 7, "failed, exit 7"),
    _itself(
        "raises", "the training raises an exception", "at('window', lambda rank: 1 / 0)", 1, "ZeroDivisionError",
        told_by="logs",
    ),
)  # fmt: skip
