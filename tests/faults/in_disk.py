"""Faults of the disk with the runs: full or read-only, at each moment of a run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from tests.faults.fault import LOCAL, Fault, Place, Setting
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.scene import Scene
from tests.waiting import limit_s

MIB = 24
FULL = "it ended without an exit status: the disk of .* is full; free some space"
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


def read_only(scene: Scene) -> None:
    subprocess.run(["mount", "-o", "remount,ro", scene.runs], check=True, timeout=limit_s())
    again = ["mount", "-o", "remount,rw", str(scene.runs)]
    scene.at_the_end.append(lambda: subprocess.run(again, check=True, timeout=limit_s()))


def when(moment: str, action: Callable[[Scene], object]) -> Callable[[Scene], None]:
    """Do it at the moment, at which the training waits for it."""

    def inject(scene: Scene) -> None:
        scene.reached(moment)
        action(scene)
        (scene.folder / "go").touch()

    return inject


def waits(moment: str) -> str:
    return (
        f"go = os.path.join(os.path.dirname(__file__), 'go')\n"
        f"at({moment!r}, lambda rank: [time.sleep(0.05) for _ in iter(lambda: os.path.exists(go), True)])"
    )


def _at(  # noqa: PLR0917  # a row of a table
    name: str,
    what: str,
    moment: str,
    action: Callable[[Scene], object],
    tells: str,
    kept: str,
    keeps: tuple[str, ...],
    *,
    quick: tuple[Place, ...],
) -> Fault:
    return Fault(
        name=name, what=what, inject=when(moment, action), state="failed", tells=tells, kept=kept,
        keeps=keeps, then=FREE, quick=quick, setting=Setting(training=waits(moment), disk_mib=MIB),
    )  # fmt: skip


FAULTS = (
    Fault(
        name="disk-full-at-start",
        what="the disk is full before the start",
        inject=lambda _: None,
        prepare=fill,
        state="refused",
        tells="no space left on this disk",
        told_by="launch",
        kept="nothing was started, and nothing is left",
        then=FREE,
        setting=Setting(disk_mib=MIB),
        quick=LOCAL,
    ),
    Fault(
        name="disk-read-only-at-start",
        what="the disk is read-only before the start",
        inject=lambda _: None,
        prepare=read_only,
        state="refused",
        tells="cannot be written .Read-only file system.",
        told_by="launch",
        kept="nothing was started, and nothing is left",
        then="HARNESS_RUNS elsewhere",
        setting=Setting(disk_mib=MIB),
    ),
    *(
        _at(f"disk-full-{name}", f"the disk becomes full {when_}", moment, fill, FULL, kept, keeps,
            quick=LOCAL if moment == "window" else ())
        for name, when_, moment, kept, keeps in (
            ("in-start-up", "while it starts up", "start", "run.json and its script", ()),
            ("while-training", "while it trains", "window", "metrics up to that moment", (METRICS,)),
            ("at-trace", "while a trace is written", "trace", "metrics; an incomplete trace is not used", (METRICS,)),
            ("at-end", "after the last step", "end", "metrics and whole traces", (METRICS, TRACES)),
        )
    ),
)  # fmt: skip
