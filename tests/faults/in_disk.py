"""Faults of the disk with the runs: full, at each moment of a run."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.faults.fault import LOCAL, Fault, Setting, nothing
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.scene import Scene

MIB = 24
FULL = "it ended without an exit status: the disk of … is full; free some space"
FREE = "free some space (or HARNESS_RUNS elsewhere), and the same command again"


def fill(scene: Scene) -> None:
    """Write until the disk is full."""
    with (scene.runs / "full").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(os.urandom(size)):
                    pass
            except OSError:
                continue


def full_at(moment: str) -> Callable[[Scene], None]:
    """The disk is filled at the moment, at which the training waits for it."""

    def inject(scene: Scene) -> None:
        scene.reached(moment)
        fill(scene)
        (scene.folder / "go").touch()

    return inject


def waits(moment: str) -> str:
    return (
        f"go = os.path.join(os.path.dirname(__file__), 'go')\n"
        f"at({moment!r}, lambda rank: [time.sleep(0.05) for _ in iter(lambda: os.path.exists(go), True)])"
    )


def _full(name: str, when: str, moment: str, kept: str, keeps: tuple[str, ...]) -> Fault:
    return Fault(
        name=f"disk-full-{name}", what=f"the disk becomes full {when}", inject=full_at(moment), state="failed",
        tells=FULL, kept=kept, keeps=keeps, then=FREE, quick=LOCAL if moment == "window" else (),
        setting=Setting(training=waits(moment), disk_mib=MIB),
    )  # fmt: skip


FAULTS = (
    Fault(
        name="disk-full-at-start",
        what="the disk is full before the start",
        inject=nothing,
        prepare=fill,
        state="refused",
        tells="no space left on this disk",
        told_by="launch",
        kept="nothing was started, and nothing is left",
        then=FREE,
        setting=Setting(disk_mib=MIB),
        quick=LOCAL,
    ),
    _full("in-start-up", "while it starts up", "start", "run.json and its script", ()),
    _full("while-training", "while it trains", "window", "metrics up to that moment", (METRICS,)),
    _full("at-trace", "while a trace is written", "trace", "metrics; an incomplete trace is not used", (METRICS,)),
    _full("at-end", "after the last step", "end", "metrics and whole traces", (METRICS, TRACES)),
)
