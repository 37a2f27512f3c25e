"""Faults of the disk and of a run's files: full, deleted, cut short, replaced; and what a training prints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.faults.fault import BOTH, LOCAL, End, Fault, Place, Setting, nothing
from tests.faults.in_ranks import LOGS, METRICS, TRACES
from tests.faults.scene import Scene

WHOLE = (METRICS, TRACES, "status.json")
REPORT = "slurm.sh report RUN"
MIB = 24
FULL = "it ended without an exit status: the disk of … is full; free some space"
FREE = "free some space (or HARNESS_RUNS elsewhere), and the same command again"


def while_it_runs(change: Callable[[Path], object], name: str) -> Callable[[Scene], None]:
    """Change a file or folder of the run while it is in its window."""

    def inject(scene: Scene) -> None:
        scene.reached("window")
        change(scene.path / name)

    return inject


def after_its_end(change: Callable[[Path], object], name: str) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.reached("end")
        scene.wait_for_end()
        change(scene.path / name)

    return inject


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def a_file_instead(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("not a folder")


def logs_removed(scene: Scene) -> None:
    scene.reached("window")
    shutil.rmtree(scene.logs)


def _fault(  # a row of a table
    name: str,
    what: str,
    inject: Callable[[Scene], None],
    tells: str,
    kept: str,
    *,
    then: str = REPORT,
    told_by: str = "status",
    keeps: tuple[str, ...] = WHOLE,
    takes: tuple[str, ...] = (),
    where: tuple[Place, ...] = LOCAL,
    quick: tuple[Place, ...] = (),
    state: End = "completed",
    exit_code: int | None = 0,
    slurm: str = "",
    training: str = "",
    steps: int = 8,
) -> Fault:
    return Fault(
        name=name, what=what, inject=inject, state=state, tells=tells, kept=kept, then=then, told_by=told_by,
        keeps=keeps, takes=takes, where=where, quick=quick, exit_code=exit_code, slurm=slurm,
        setting=Setting(training=training, steps=steps, ranks=2),
    )  # fmt: skip


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
    _fault(
        "trace-cut", "a trace is truncated", after_its_end(cut, "torch/rank1.json.gz"), "rank1.json.gz: …",
        "the other ranks' traces, and all metrics", told_by="report", keeps=("torch/rank0.json.gz", METRICS),
        then=REPORT,
    ),
    _fault(
        "traces-no-folder", "there is a file instead of the traces' folder, so no trace can be written",
        while_it_runs(a_file_instead, "torch"), "FileExistsError", "all metrics", then=LOGS,
        told_by="logs", keeps=(METRICS,), state="failed", exit_code=1, steps=30,
    ),
    _fault(
        "status-deleted-while-training", "status.json is deleted while it trains",
        while_it_runs(removed, "status.json"), "completed, exit 0", "everything", steps=30,
    ),
    _fault(
        "status-cut", "status.json is truncated", after_its_end(cut, "status.json"), "completed",
        "everything: run.json has the end too", takes=("status.json",), where=BOTH, exit_code=None,
    ),
    _fault(
        "record-deleted", "run.json is deleted", after_its_end(removed, "run.json"),
        "run.json is lost, and with it its state", "traces, metrics and logs; report answers from them",
        takes=("run.json",), where=BOTH, quick=LOCAL, state="unknown", exit_code=1, slurm="COMPLETED",
    ),
    _fault(
        "record-deleted-while-training", "run.json is deleted while it trains", while_it_runs(removed, "run.json"),
        "completed, exit 0", "everything: the job's program writes it again at the end", steps=30,
    ),
    _fault(
        "logs-deleted-while-training", "the log folder is deleted while it trains", logs_removed,
        "its logs are missing", "traces and metrics", told_by="logs", takes=("logs",), steps=30,
    ),
    _fault(
        "no-traces", "the training exits 0 without a trace", nothing, "missing: torch/rank0.json.gz",
        "its metrics", keeps=(METRICS,), training="at('window', lambda rank: os._exit(0))", where=BOTH, quick=BOTH,
    ),
    _fault(
        "bad-output", "the training prints bytes that are not text", nothing, "beg\ufffd\ufffdin",
        "everything", told_by="logs",
        training="at('window', lambda rank: os.write(1, b'beg\\xff\\xfein \\x1b[31m\\n'))",
    ),
    _fault(
        "closed-output", "the training closes its output", nothing, "completed, exit 0", "everything",
        training="at('window', lambda rank: (os.close(1), os.close(2)))",
    ),
    _fault(
        "file-limit", "a file-size limit of the account ends the trace", nothing, "failed, exit 1",
        "its metrics", then=LOGS, keeps=(METRICS,), state="failed", exit_code=1,
        training="import resource\nat('trace', lambda rank: resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)))",
    ),
    _fault(
        "memory-limit", "a rank gets no more memory", nothing, "MemoryError", "its metrics", then=LOGS, told_by="logs",
        keeps=(METRICS,), state="failed", exit_code=1,
        training="import resource\n"
        "at('window', lambda rank: (resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)), bytearray(1 << 40)))",
    ),
)  # fmt: skip
